"""The studio in a browser: what a person sees is what is stored, by pointer, keyboard or phone, in light and dark."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from benchmarks.studio.made_runs import NEEDLE, make_run, write_metrics
from benchmarks.studio.page import key_curves
from studio_pages import LANDMARK, pages_of, path_of
from studio_runs import EVIL, make_studio_run, serving, write_step
from tiny_runs import SFT, run_tiny
from turnwise.runs import MetricsLog, RunDirectory
from turnwise.runs.episodes import list_episodes, read_episode, trajectory_files


def test_the_list_shows_runs_and_what_differs(open_page, studio):
    page = open_page(studio)
    row = page.locator(".run-row", has_text="second")
    expect(row.locator(".status")).to_have_text("finished")
    expect(row.locator(".chips")).to_contain_text("optimizer.lr 0.001")
    expect(row.locator(".strong")).to_have_text("0.2")
    page.get_by_label("Find a run or setting").fill("0.001")
    expect(page.locator(".run-row")).to_have_count(1)


def test_chosen_runs_are_overlaid(open_page, studio):
    page = open_page(studio)
    page.get_by_label("Choose first to overlay").check()
    page.get_by_label("Choose second to overlay").check()
    page.get_by_role("link", name="Overlay 2 runs").click()
    expect(page.locator(".legend.runs a")).to_have_count(2)
    expect(page.locator('[data-metric="rollout/reward"] .series')).to_have_count(2)


def test_the_curves_of_a_live_run_move(open_page, tmp_path):
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    with serving(tmp_path) as client:
        page = open_page(client, path_of(client, "/curves", "live"))
        chart = page.locator('[data-metric="rollout/reward"] svg')
        expect(chart).to_have_attribute("aria-label", "Reward: Reward 0.2")
        line = chart.locator("path.line")
        before = line.get_attribute("d")
        asked = []
        page.on("request", lambda one: asked.append(one.url))
        write_step(run, 3)
        expect(chart).to_have_attribute("aria-label", "Reward: Reward 0.3")
        assert line.get_attribute("d") != before
        expect(page.locator(".tile", has_text="training steps")).to_contain_text("3")
        expect(page.locator(".tile", has_text="episodes of training")).to_contain_text("18")
        assert [("/series?" in url, "since=" in url) for url in asked] == [(True, True)] * len(asked)
        page.close()


def test_a_page_that_followed_draws_what_one_that_comes_later_draws(open_page, tmp_path):
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    lines = "[...document.querySelectorAll('.chart path.line, .chart .whisker')].map((one) => one.outerHTML)"
    with serving(tmp_path) as client:
        path = path_of(client, "/curves", "live")
        page = open_page(client, path)
        expect(page.locator(".chart svg").first).to_be_visible()
        log = MetricsLog(run.metrics)
        writes = [
            lambda: write_step(run, 3, log),
            lambda: log.write(3, "evaluate", dict.fromkeys(("evaluate/success", "evaluate/success_low"), 0.9)),
            lambda: log.write(4, "train", {"rollout/reward": 0.1, "policy/grad_norm": 7.0}),
            lambda: log.truncate_after(3),
            lambda: write_step(run, 4, log),
        ]
        for write in writes:
            with page.expect_response(lambda one: "since=" in one.url, timeout=60_000):
                write()
        fresh = open_page(client, path)
        expect(fresh.locator(".chart svg").first).to_be_visible()
        fresh.wait_for_function(f"() => {lines}.length > 3")
        wanted = fresh.evaluate(lines)
        same = f"(wanted) => JSON.stringify({lines}) === JSON.stringify(wanted)"
        page.wait_for_function(same, arg=wanted, timeout=60_000)
        page.close()
        fresh.close()


def test_a_chart_out_of_sight_is_drawn_when_it_comes_into_sight_and_a_hidden_page_asks_for_nothing(open_page, tmp_path):
    run = make_run(tmp_path / "live", trajectories=200, tokens=20)
    write_metrics(run, steps=20, curves=key_curves())
    line = run.metrics.read_text().splitlines(keepends=True)[0].replace('"step": 1,', '"step": 21,')
    drawn = "document.querySelector('[data-metric=\"rollout/tokens_per_second\"] path.line').getAttribute('d')"
    hide = "(hidden) => Object.defineProperty(document, 'hidden', { value: hidden, configurable: true })"
    with serving(tmp_path) as client:
        page = open_page(client, path_of(client, "/curves", "live"))
        last = page.locator('[data-metric="rollout/tokens_per_second"]')
        expect(last.locator("svg")).to_be_attached()
        before = page.evaluate(drawn)
        with page.expect_response(lambda one: "since=" in one.url, timeout=60_000), run.metrics.open("a") as file:
            file.write(line)
        page.wait_for_timeout(500)
        assert page.evaluate(drawn) == before
        last.scroll_into_view_if_needed()
        page.wait_for_function(f"(before) => {drawn} !== before", arg=before)
        page.evaluate(hide, True)
        page.wait_for_timeout(8000)  # until a request that was due before is over
        asked = []
        page.on("request", lambda one: asked.append(one.url))
        with run.metrics.open("a") as file:
            file.write(line.replace('"step": 21,', '"step": 22,'))
        page.wait_for_timeout(4000)
        assert asked == []
        with page.expect_response(lambda one: "since=" in one.url, timeout=60_000):
            page.evaluate(hide, False)
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.close()


@pytest.mark.parametrize("path", ["", "/curves", "/trajectories", "/ledger"])
def test_a_page_that_waits_paints_nothing(open_page, tmp_path, path):
    """Beside a run that trains, an animation without end would cost an eighth of a core."""
    make_studio_run(tmp_path / "live", steps=2, ended=False)
    with serving(tmp_path) as client:
        page = open_page(client, path_of(client, path, "live") if path else "/")
        expect(page.locator(".pulse")).to_be_visible()
        expect(page.locator(".status.training").first).to_be_visible()
        page.wait_for_function("() => !document.getAnimations().some((one) => one.playState === 'running')")
        page.close()


def test_findings_and_decisions_are_on_the_axis(open_page, studio):
    page = open_page(studio, path_of(studio, "/curves"))
    chart = page.locator('[data-metric="rollout/reward"]')
    expect(chart.locator(".event.alarm")).to_have_count(1)
    expect(chart.locator(".event.action title")).to_have_text("step 2: rolled back to step 1; StarPO-S enabled")
    expect(page.locator(".timeline li")).to_have_count(2)
    expect(page.locator('[data-metric="rollout/success evaluate/success"] .whisker')).to_have_count(2)
    page.get_by_role("radio", name="time").click()
    expect(chart.locator(".event.alarm")).to_have_count(1)


def test_the_cursor_reads_a_curves_values(open_page, studio):
    page = open_page(studio, path_of(studio, "/curves"))
    chart = page.locator('[data-metric="rollout/reward"]')
    chart.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(chart.locator(".tip")).to_contain_text("step 2")
    expect(chart.locator(".tip b")).to_have_text("0.2")


def test_a_filter_finds_the_failing_trajectories(open_page, studio):
    lines = list_episodes(trajectory_files(RunDirectory(studio.folder / "first")), [])
    failed = [line.name for line in lines if line.failed]
    page = open_page(studio, path_of(studio, "/trajectories"))
    expect(page.locator(".row")).to_have_count(20)
    page.get_by_label("Outcome").select_option("failed")
    expect(page.locator(".row")).to_have_count(len(failed))
    assert [row.get_attribute("data-name") for row in page.locator(".row").all()] == failed
    assert "success=failed" in page.url
    page.locator(".row a").first.click()
    expect(page.locator(".trajectory-head .bad")).to_contain_text("KeyError: 'gold'")


def test_a_search_opens_at_what_it_found(open_page, studio):
    page = open_page(studio, path_of(studio, "/trajectories"))
    page.get_by_label("Search inside messages").fill("again and again")
    expect(page.locator(".count")).to_contain_text("3 of 20")
    page.locator(".row a").first.click()
    expect(page.locator(".message mark")).to_have_text("again and again")


def test_what_teaches_most_comes_first(open_page, studio):
    page = open_page(studio, path_of(studio, "/trajectories"))
    page.get_by_role("button", name="What teaches most").click()
    expect(page.locator(".row").first).to_have_attribute("data-name", "train-1/0/0")
    expect(page.locator(".row").nth(9)).to_have_attribute("data-name", "train-1/1/0")


def test_the_token_views_numbers_are_the_stored_ones(open_page, studio):
    stored = read_episode(RunDirectory(studio.folder / "first"), "train-2/0/1")
    page = open_page(studio, path_of(studio, "/t/train-2/0/1?view=tokens"))
    tokens = page.locator(".tok.act")
    wanted = [
        (token, advantage, logprob, learner, entropy, turn.version)
        for turn, record in zip(stored.trajectory.turns, stored.turns, strict=True)
        for token, logprob, advantage, learner, entropy in zip(
            turn.action_ids, turn.logprobs, record.advantages, record.learner_logprobs, record.entropies, strict=True
        )
    ]
    expect(tokens).to_have_count(len(wanted))
    shown = page.evaluate(
        """() => [...document.querySelectorAll(".tok.act")].map((token) => {
            token.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
            const fact = (name) => document.querySelector(`.inspector [data-fact=${name}]`).dataset.exact;
            const names = ["id", "advantage", "logprob", "learner-logprob", "entropy", "version"];
            return names.map((name) => Number(fact(name)));
        })"""
    )
    assert [tuple(one) for one in shown] == wanted
    tokens.nth(5).hover()
    expect(page.locator(".inspector [data-fact=logprob]")).to_have_text(f"{wanted[5][2]:g}")
    text = "".join(tokens.all_text_contents()).replace("↵", "")
    assert text == "".join(record.action_text for record in stored.turns)


def test_each_number_paints_the_tokens(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/train-2/0/1?view=tokens"))
    paint = """() => [...document.querySelectorAll(".tok.act")].map((one) => getComputedStyle(one).backgroundColor)"""
    seen = {}
    for mode in ("role", "advantage", "logprob", "gap", "entropy", "version"):
        page.get_by_role("radio", name=mode, exact=True).click()
        seen[mode] = page.evaluate(paint)
        assert f"paint={mode}" in page.url
    assert len({tuple(colours) for colours in seen.values()}) == 6
    assert len(set(seen["role"])) == 1
    assert len(set(seen["version"])) == 2, "the turns were sampled by two versions"
    assert len(set(seen["entropy"])) > 20
    read = page.evaluate("""() => getComputedStyle(document.querySelector(".tok.ctx")).backgroundColor""")
    assert read == "rgba(0, 0, 0, 0)", "what was read is not painted"


def test_row_breaks_are_drawn(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/train-1/1/0?view=tokens"))
    expect(page.locator(".tokens .row-break")).to_have_count(1)
    page.keyboard.press("c")
    expect(page.locator(".conversation .row-break")).to_have_count(1)


def test_what_a_model_wrote_is_only_text(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/train-1/0/0"))
    result = page.locator(".message.tool")
    result.locator("summary").click()
    expect(result.locator(".written")).to_have_text(f"Found {EVIL}")
    assert page.locator("main script, main img").count() == 0
    page.keyboard.press("x")
    expect(page.locator(".tokens")).to_be_visible()
    assert page.locator("main script, main img").count() == 0
    assert "owned" not in page.title()


def test_a_conversation_shows_tools_boards_thoughts_and_rewards(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/train-1/0/0"))
    first = page.locator("#turn-1")
    expect(first.locator(".thinking")).to_contain_text("Look it up.")
    first.locator(".definition summary").click()
    expect(first.locator(".definition pre")).to_have_text("search(query): Searches the encyclopedia")
    expect(first.locator("footer .pill")).to_have_text("found +0.25")
    expect(page.locator(".board .cell")).to_have_count(6)
    expect(page.locator(".board .cell.player")).to_have_text("P")


def test_siblings_stand_side_by_side_with_the_first_difference_marked(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/train-1/0/0?view=siblings"))
    page.get_by_role("link", name="Put 3 side by side").click()
    expect(page.locator(".column")).to_have_count(3)
    marks = page.locator(".column .differs")
    expect(marks).to_have_count(2)
    assert sorted(marks.all_text_contents()) == ["B", "t"], "Oslo, Os|t|end, |B|ergen"
    expect(page.locator(".column").nth(1)).to_contain_text("differs from the first in turn 2, sampled token 3")


def test_the_same_task_at_other_steps(open_page, studio):
    page = open_page(studio, path_of(studio, "/t/evaluate-0/0/0?view=task"))
    expect(page.locator(".picked")).not_to_have_count(0)
    page.get_by_label("Choose evaluate-2/0/0").check()
    page.get_by_role("link", name=re.compile("side by side")).click()
    expect(page.locator(".column header a", has_text="evaluate-2/0/0")).to_be_visible()


def test_deep_links_lead_to_a_step_and_a_turn(open_page, studio):
    page = open_page(studio, path_of(studio, "/step/2"))
    expect(page.locator(".row").first).to_have_attribute("data-name", re.compile(r"-2/"))
    assert page.locator(".row").count() == 7
    page.goto(f"{studio.studio.url}#{path_of(studio, '/t/train-1/0/0?turn=2')}")
    expect(page.locator("#turn-2.aimed")).to_be_in_viewport()


def test_everything_works_by_keyboard_alone(open_page, studio):
    page = open_page(studio)
    expect(page.locator(".run-row")).to_have_count(2)
    press = page.keyboard.press
    press("?")
    expect(page.locator("dialog")).to_contain_text("change the theme")
    press("Escape")
    press("j")
    press("Enter")
    expect(page.locator(".tabs")).to_be_visible()
    press("2")
    expect(page.locator(".row").first).to_be_visible()
    press("/")
    page.keyboard.type("Ostend")
    expect(page.locator(".count")).to_contain_text("3 of 20")
    press("Escape")
    press("j")
    press("j")
    press("Enter")
    expect(page.locator(".message").first).to_be_visible()
    assert "/t/train-2/0/1" in page.url
    press("x")
    page.locator(".tok").first.focus()
    for _ in range(3):
        press("ArrowRight")
    expect(page.locator(".inspector [data-fact=turn]")).to_have_text("1, token 4")
    press("k")
    expect(page.locator(".trail")).to_contain_text("train-2/0/0")
    press("u")
    expect(page.locator(".row").first).to_be_visible()
    press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize("name", LANDMARK)
def test_no_page_is_wider_than_a_phone(open_page, studio, name):
    page = open_page(studio, pages_of(studio)[name], viewport={"width": 390, "height": 780}, has_touch=True)
    expect(page.locator(LANDMARK[name]).first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


LEAST_CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", LANDMARK)
def test_text_can_be_read_in_both_themes(open_page, studio, name, theme):
    page = open_page(studio, pages_of(studio)[name], color_scheme=theme)
    expect(page.locator(LANDMARK[name]).first).to_be_attached()
    ratio, where = page.evaluate(LEAST_CONTRAST)
    assert ratio >= 4.5, where
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 252, 253)"
    assert light == (theme == "light")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("mode", ["role", "advantage", "logprob", "gap", "entropy", "version"])
def test_painted_tokens_can_be_read(open_page, studio, mode, theme):
    path = path_of(studio, f"/t/train-1/0/0?view=tokens&paint={mode}")
    page = open_page(studio, path, color_scheme=theme)
    expect(page.locator(f".token-view.paint-{mode}")).to_be_attached()
    ratio, where = page.evaluate(LEAST_CONTRAST)
    assert ratio >= 4.5, where


def test_a_damaged_run_says_what_could_not_be_read(open_page, tmp_path):
    run = make_studio_run(tmp_path / "broken")
    run.trajectory_file("train", 2).write_bytes(b"PAR1 and no more")
    with run.metrics.open("ab") as file:
        file.write(b"garbage\n")
    with serving(tmp_path) as client:
        page = open_page(client, path_of(client, "/trajectories", "broken"))
        expect(page.locator(".problems").first).to_contain_text("metrics.jsonl")
        expect(page.locator(".problems").last).to_contain_text("train-000002.parquet cannot be read")
        expect(page.locator(".row").first).to_be_visible()
        page.close()


def test_ten_thousand_trajectories_open_filter_and_are_searched_in_time(open_page, tmp_path):
    """The best of three: what else the machine does only ever adds to it."""
    run = make_run(tmp_path / "large", trajectories=10_000, tokens=500)
    write_metrics(run, steps=1000)
    took = [measure_large_run(open_page, tmp_path, words) for words in (NEEDLE, NEEDLE[2:], NEEDLE[:-2])]
    opening, filtering, searching, curves = (min(times) for times in zip(*took, strict=True))
    assert (opening < 3, filtering < 0.5, searching < 2, curves < 2) == (True, True, True, True), took


def measure_large_run(open_page, folder, words):
    """Seconds from the click until the page shows it, by a server that has read nothing yet."""

    def seconds(act, seen):
        began = time.perf_counter()
        act()
        seen()
        return time.perf_counter() - began

    with serving(folder) as client:
        page = open_page(client)
        expect(page.locator(".run-row")).to_have_count(1)

        def shows(pattern):
            return lambda: expect(page.locator(".count")).to_have_text(re.compile(pattern), timeout=60_000)

        address = f"{client.studio.url}#{path_of(client, '/trajectories', 'large')}"
        opening = seconds(lambda: page.goto(address), shows("^10,000 of 10,000 trajectories$"))
        outcome = page.get_by_label("Outcome")
        filtering = seconds(lambda: outcome.select_option("failed"), shows("^[0-9,]{3,5} of 10,000"))
        outcome.select_option("")
        shows("^10,000 of")()
        search = page.get_by_label("Search inside messages")
        searching = seconds(lambda: search.fill(words), shows("^[0-9]{1,2} of 10,000"))
        curves = f"{client.studio.url}#{path_of(client, '/curves', 'large')}"
        drawn = page.locator('[data-metric="rollout/reward"] path.line')
        drawing = seconds(lambda: page.goto(curves), lambda: expect(drawn).to_be_attached(timeout=60_000))
        page.close()
        return opening, filtering, searching, drawing


def test_a_branch_changes_what_it_should(open_page, tmp_path):
    """A person's right word is paid, and what the environment answers is read; from there the policy goes on."""
    with ThreadPoolExecutor(1) as thread:  # the driver's event loop has this one
        thread.submit(run_tiny, tmp_path / "tiny", steps=1, sft={**SFT, "demonstrations": 64}).result()
    with serving(tmp_path) as client:
        page = open_page(client, path_of(client, "/t/train-1/0/0", "tiny"))
        page.locator("#turn-1").hover()
        page.locator("#turn-1").get_by_role("button", name="branch from here").click()
        page.get_by_label("make this move myself").check()
        page.get_by_label("Your move").fill("up")
        page.get_by_label("stop after my move").check()
        page.get_by_role("button", name="Play the branch").click()
        expect(page.locator(".branch-result")).to_contain_text("reward +0.5", timeout=180_000)
        column = page.locator(".column").nth(1)
        expect(column.locator(".turn-mark .pill")).to_have_text("right +0.5")
        assert "sea" in "".join(column.locator(".tok.tail").all_text_contents())
        page.get_by_label(re.compile("edit what it reads before turn 2")).check()
        expect(page.get_by_label("What it reads instead")).to_have_value("sea")
        page.get_by_label("What it reads instead").fill("a dry sea")
        page.get_by_role("button", name="Play the branch").click()
        expect(page.locator("h1")).to_have_text("Branch from turn 2", timeout=180_000)
        column = page.locator(".column").nth(1)
        expect(column.locator(".turn-mark")).to_have_count(2)
        assert "a dry sea" in "".join(column.locator(".tok.ctx").all_text_contents())
        stored = RunDirectory(tmp_path / "tiny")
        assert sorted(path.name for path in stored.path.iterdir() if "branch" in path.name) == []
        page.close()
