"""Pictures of every page in both themes, to look at and for docs/img, in the environment of `make test-studio`:

.venv-studio/bin/python tests/studio/browser/screenshots.py FOLDER [--runs RUNS --run NAME --trajectory train-1/0/0]

Without `--runs`, of the runs that the tests make.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from playwright.sync_api import expect, sync_playwright  # noqa: E402

from conftest import CHROMIUM, FLAGS  # noqa: E402  the folders above hold them
from studio_pages import LANDMARK, TRAJECTORY, pages_of  # noqa: E402
from studio_runs import make_studio_run, serving  # noqa: E402

SIZE = {"width": 1280, "height": 860}


def take_pictures(client, folder, wanted, **of):
    """`FOLDER/tokens-dark.png` and so on, once each page shows what it is for."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for theme in ("light", "dark"):
            page = browser.new_context(viewport=SIZE, color_scheme=theme).new_page()
            page.goto(client.studio.address)
            for name, path in pages_of(client, **of).items():
                if wanted and name not in wanted:
                    continue
                page.goto(f"{client.studio.url}#{path}")
                expect(page.locator(LANDMARK[name]).first).to_be_attached(timeout=60_000)
                page.wait_for_timeout(500)  # until fonts and curves are drawn
                page.screenshot(path=folder / f"{name}-{theme}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path, help="a folder with runs in it")
    parser.add_argument("--run", default="first")
    parser.add_argument("--overlay", default="second")
    parser.add_argument("--trajectory", default=TRAJECTORY)
    parser.add_argument("--page", action="append", choices=LANDMARK, help="these alone")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        if options.runs is None:
            make_studio_run(Path(made) / "first")
            make_studio_run(Path(made) / "second", seed=1, lr=1e-3)
        of = {"name": options.run, "trajectory": options.trajectory, "overlay": options.overlay}
        with serving(options.runs or made) as client:
            take_pictures(client, options.folder, options.page, **of)


if __name__ == "__main__":
    main()
