"""Debian's Chromium, headless, signed in; a page that logs an error or asks another host fails its test."""

import os
import shutil

import pytest

from studio_runs import make_studio_run, serving

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail("there is no Chromium: apt-get install chromium, or name one by CHROMIUM=...")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def studio(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    make_studio_run(folder / "first")
    make_studio_run(folder / "second", seed=1, lr=1e-3)
    with serving(folder) as client:
        client.folder = folder
        yield client


@pytest.fixture
def open_page(browser):
    """`open_page(studio, "/run/...")`: a page in a context of its own; options are the context's."""
    contexts, mistakes = [], []

    def open_one(client, path="/", **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda line: mistakes.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.on("dialog", lambda dialog: mistakes.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda asked: (
                mistakes.append(asked.url) if not asked.url.startswith((client.studio.url, "data:")) else None
            ),
        )
        page.goto(client.studio.address)
        page.goto(f"{client.studio.url}#{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert mistakes == []
