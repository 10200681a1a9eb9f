"""The report: one page that any parser reads, true to hand-made metrics, whatever state the run is in."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from turnwise.cli.main import main
from turnwise.runs import RunDirectory
from turnwise.runs.ledger.totals import read_totals, show_totals
from turnwise.runs.report.charts import draw_lines
from turnwise.runs.report.writer import read_view, write_report

CONFIG = """\
env: {name: frozen_lake, args: {size: 3, hint: <b>bold</b>}}
model: {name: small, small: {layers: 2}}
seed: 7
steps: 2
sft: {demonstrations: 64, chats: null}
rollout: {groups_per_step: 4, group_size: 2, max_turns: 6, turn_tokens: 12}
credit: {estimator: grpo}
learner: {optimizer: {lr: 0.0005}}
stability: {mode: monitor}
"""
RECORDS = [
    {"step": 1, "stage": "sft", "time": 1000.0, "sft/loss": 1.0, "ledger/cold_start_seconds": 2.0}
    | {"ledger/prepare_seconds": 1.0, "ledger/wall_seconds": 3.0},
    {"step": 0, "stage": "evaluate", "time": 1001.0, "evaluate/success": 0.25, "evaluate/success_low": 0.1}
    | {"evaluate/success_high": 0.45, "evaluate/reward": 0.25, "evaluate/turns": 2.5, "evaluate/episodes": 16.0}
    | {"evaluate/failed": 0.0, "evaluate/hops=2/success": 0.125, "ledger/decode_seconds": 1.0}
    | {"ledger/wall_seconds": 1.0, "ledger/sampled_tokens": 100},
    {"step": 1, "stage": "train", "time": 1002.0, "rollout/success": 0.5, "rollout/reward": 0.5}
    | {"rollout/episodes": 8.0, "rollout/failed": 2.0, "rollout/turns": 3.0, "rollout/turns_cut": 0.5}
    | {"rollout/stop_done": 0.5, "rollout/stop_max_turns": 0.5, "filter/kept": 3.0, "filter/dropped": 1.0}
    | {"filter/zero_variance": 1.0, "policy/entropy": 1.25, "policy/steps_taken": 1, "policy/steps_skipped": 0}
    | {"ledger/decode_seconds": 3.0, "ledger/tail_idle_seconds": 1.0, "ledger/update_seconds": 2.0}
    | {"ledger/wall_seconds": 6.0, "ledger/sampled_tokens": 400, "ledger/trained_tokens": 300},
    {"step": 2, "stage": "train", "time": 1003.0, "rollout/success": None, "rollout/reward": 0.75}
    | {"rollout/episodes": 8.0, "rollout/failed": 0.0, "rollout/turns": 2.0, "policy/entropy": 1.0}
    | {"ledger/update_seconds": 4.0, "ledger/novel_seconds": 1.0, "ledger/wall_seconds": 5.0},
    {"step": 2, "stage": "end", "time": 1004.0, "ledger/checkpoint_seconds": 1.0, "ledger/wall_seconds": 1.0},
]
FINDINGS = [
    {
        "step": 2,
        "kind": "echo_trap",
        "severity": "alarm",
        "sentence": "groups no longer differ <script>alert(1)</script>",
    },
    {"step": 2, "kind": "length_drift", "severity": "sign", "sentence": "turns have grown"},
]


def make_run(folder: Path, records=RECORDS, findings=(), config: str = CONFIG) -> RunDirectory:
    folder.mkdir()
    run = RunDirectory(folder)
    run.config.write_text(config)
    if records is not None:
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    if findings:
        (folder / "findings.jsonl").write_text("".join(json.dumps(finding) + "\n" for finding in findings))
    return run


class Page(HTMLParser):
    """What a browser would make of a page: text by section, tables by section, and whether every tag is closed."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.words: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("h1", "h2"):
            self.section = ""
        if tag == "tr":
            self.rows.setdefault(self.section, []).append([])
        if tag in ("td", "th"):
            self.rows[self.section][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes what it opened"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.section += data
        if "td" in self.open or "th" in self.open:
            self.rows[self.section][-1][-1] += data
        self.words[self.section] = self.words.get(self.section, "") + data


def read_page(run: RunDirectory) -> Page:
    path = write_report(run)
    assert path == run.path / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def page(tmp_path) -> Page:
    return read_page(make_run(tmp_path / "lake", findings=FINDINGS))


def column(rows: list[list[str]], title: str) -> dict[str, str]:
    """A column of a table by the first cell of its rows."""
    place = rows[0].index(title)
    return {row[0]: row[place] for row in rows[1:]}


def test_it_says_what_run_it_is(page):
    assert "finished after 2 steps" in page.words["lake"]
    facts = dict(page.rows["lake"])
    assert facts["environment"] == 'frozen_lake, size=3, hint="<b>bold</b>"', "shown, not obeyed"
    assert facts["model"] == "small, layers=2"
    assert facts["episodes"] == "4 tasks × 2 episodes a step, up to 6 turns of 12 tokens"
    assert (facts["credit"], facts["learning rate"], facts["seed"]) == ("grpo", "0.0005", "7")
    assert facts["cold start"] == "64 demonstrations"
    assert "demonstrations: 64" in page.words["Setup"], "the whole config is there"


def test_it_needs_nothing_but_itself(page):
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed"}
    assert not [value for _, given in page.tags for name, value in given.items() if name in ("src", "href")]
    assert page.words["Findings"].count("<script>") == 1, "what a run says is text"


def test_the_ledger_is_the_sum_of_all_records(page):
    rows = page.rows["Where the time went"]
    seconds = column(rows, "seconds")
    assert seconds == {
        "decode": "4.00",
        "tail idle": "1.00",
        "update": "6.00",
        "cold start": "2.00",
        "checkpoint": "1.00",
        "prepare": "1.00",
        "novel": "1.00",
        "sum": "16.00",
    }
    assert list(seconds)[:3] == ["decode", "tail idle", "update"], "in the order of the ledger"
    assert column(rows, "share")["decode"] == "25.0%"
    assert column(rows, "share")["sum"] == "100.0%"
    assert column(rows, "training") | {"sum": ""} == {
        "decode": "3.00",
        "tail idle": "1.00",
        "update": "6.00",
        "cold start": "–",
        "checkpoint": "1.00",
        "prepare": "–",
        "novel": "1.00",
        "sum": "",
    }
    assert "of 16.00 s of wall-clock" in page.words["Where the time went"]


def test_bars_are_as_wide_as_their_shares(page):
    rectangles = [given for tag, given in page.tags if tag == "rect"][:7]
    widths = {given["class"]: float(given["width"] or 0) for given in rectangles}
    assert sum(widths.values()) == pytest.approx(860, abs=0.1)
    assert widths["a-decode"] == pytest.approx(860 * 4 / 16, abs=0.01)
    starts = [float(given["x"] or 0) for given in rectangles]
    assert starts == sorted(starts)


def test_tokens_stand_by_stage(page):
    rows = page.rows["Where the tokens went"]
    assert column(rows, "all") == {"sampled": "500", "trained": "300"}
    assert column(rows, "evaluation") == {"sampled": "100", "trained": "–"}


def test_evaluations_with_their_intervals_and_parts(page):
    head, row = page.rows["Evaluation"]
    assert dict(zip(head, row, strict=True)) == {
        "": "held out",
        "step": "0",
        "success": "0.250",
        "95% interval": "0.100 – 0.450",
        "reward": "0.250",
        "turns": "2.500",
        "episodes": "16",
        "failed": "0",
        "hops=2": "0.125",
    }


def test_findings_stand_with_their_steps(page):
    assert page.rows["Findings"][1:] == [
        ["2", "echo trap", FINDINGS[0]["sentence"]],
        ["2", "length drift", "turns have grown"],
    ]


def test_what_was_dropped_and_why(page):
    rows = {row[0]: row[1:3] for row in page.rows["What was left out or cut off, and why"][1:]}
    assert rows == {
        "episodes failed": ["2", "16"],
        "episodes cut off, max turns": ["3", "16"],  # half of the six that were played
        "turns cut": ["9", "34"],  # half of 6 × 3, none of 8 × 2
        "groups filtered": ["1", "4"],
        "groups with equal rewards": ["1", "4"],
    }


def test_the_curve_has_a_gap_where_there_is_no_number(page):
    lines = [given["points"] for tag, given in page.tags if tag == "polyline" and given["class"] == "line s0"]
    success, reward = lines[0], lines[1]
    assert len((success or "").split()) == 1, "step 2 has none"
    first, second = ([float(n) for n in point.split(",")] for point in (reward or "").split())
    assert first[0] < second[0]
    assert first[1] > second[1], "reward rose, and down is up"
    whiskers = [given for tag, given in page.tags if given.get("class") == "whisker s1"]
    assert len(whiskers) == 1


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (None, "nothing measured yet"),
        ([], "nothing measured yet"),
        (RECORDS[:3], "step 1 of 2"),
        (RECORDS[:1], "step 0 of 2"),
    ],
)
def test_a_run_may_be_anywhere_on_its_way(tmp_path, records, said):
    page = read_page(make_run(tmp_path / "young", records))
    assert said in page.words["young"]
    assert (page.rows.get("Evaluation") is not None) == (records == RECORDS[:3])


def test_a_torn_last_line_is_left_out(tmp_path):
    run = make_run(tmp_path / "torn")
    whole = read_page(run).rows
    with run.metrics.open("a") as file:
        file.write('{"step": 3, "stage": "train", "ledger/upd')
    assert read_page(run).rows == whole


def test_metrics_without_a_ledger_say_so(tmp_path):
    old = [{name: value for name, value in record.items() if "ledger/" not in name} for record in RECORDS]
    page = read_page(make_run(tmp_path / "old", old))
    assert "no ledger in the metrics" in page.words["Where the time went"]
    assert "Where the tokens went" not in page.words


def test_a_long_run_makes_a_small_page(tmp_path):
    many = [
        {"step": step, "stage": "train", "time": 0.0, "rollout/success": 0.5, "rollout/reward": step * 1.0}
        for step in range(1, 5001)
    ]
    run = make_run(tmp_path / "long", many)
    page = read_page(run)
    (success, reward) = (given["points"] or "" for tag, given in page.tags if tag == "polyline")
    assert len(success.split()) == len(reward.split()) == 400
    assert (run.path / "report.html").stat().st_size < 60_000


def test_half_of_a_surrogate_pair_does_not_end_a_run(tmp_path):
    odd = {**RECORDS[1], "evaluate/kind=\ud83d/success": 0.5}
    page = read_page(make_run(tmp_path / "odd", [odd]))
    assert "kind=?" in page.rows["Evaluation"][0]


def test_the_command_writes_it_and_prints_the_ledger(tmp_path, capsys):
    run = make_run(tmp_path / "lake")
    assert main(["report", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"update\W+6\.00\W+37\.5%", out)
    assert re.search(r"sum\W+16\.00\W+100\.0%", out)
    assert f"The report is in {run.path / 'report.html'}" in out.replace("\n", "")
    assert (run.path / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere"], "not a run"),
        (["report", "lake", "a=b"], "unexpected argument 'a=b': expected one run directory"),
        (["report", "broken"], "metrics.jsonl:1: not a metrics record"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "lake")
    make_run(tmp_path / "broken").metrics.write_text("{}\n")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_terminal_table_of_a_run_without_a_ledger_says_so(tmp_path):
    console = Console(record=True, width=100, quiet=False, file=(tmp_path / "out").open("w"))
    show_totals(console, read_totals([{"step": 1, "stage": "train", "time": 0.0}]))
    assert "no ledger" in console.export_text()


def test_reading_changes_nothing(tmp_path):
    run = make_run(tmp_path / "lake", findings=FINDINGS)
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    read_view(run)
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before


@pytest.mark.parametrize(
    ("highest", "shown"),
    [
        (1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0.02, ["0", "0.005", "0.01", "0.015", "0.02"]),
        (4000.0, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (40_000.0, ["0", "10k", "20k", "30k", "40k"]),
        (2e6, ["0", "500k", "1M", "1.5M", "2M"]),
    ],
)
def test_numbers_beside_an_axis_are_round_and_short(highest, shown):
    drawn = draw_lines([], label="nothing", between=(0.0, highest))
    assert re.findall(r'text-anchor="end">([^<]*)<', drawn) == shown


@pytest.mark.parametrize(("width", "type_size"), [(430, 16), (860, 11)])
@pytest.mark.parametrize("between", [(0.0, 1.0), (0.0081, 0.0143), (5200.0, 9100.0), (-0.00025, 0.00025)])
def test_numbers_beside_an_axis_are_not_cut_off(width, type_size, between):
    """A digit is at most six tenths as wide as high; what is left of zero is not on the paper."""
    drawn = draw_lines([], label="nothing", width=width, between=between)
    numbers = re.findall(r'x="([\d.]+)" y="[\d.]+" font-size="(\d+)" text-anchor="end">([^<]*)<', drawn)
    assert len(numbers) >= 3
    for x, size, number in numbers:
        assert int(size) == type_size
        assert float(x) >= 0.6 * type_size * len(number)


def test_the_gap_between_sampler_and_learner_has_a_curve_where_it_was_measured(tmp_path):
    def curves(name: str, **more: float) -> str:
        steps = [
            {"step": step, "stage": "train", "time": 0.0, "rollout/success": 0.5, "rollout/reward": 1.0, **more}
            for step in (1, 2)
        ]
        return write_report(make_run(tmp_path / name, steps)).read_text(encoding="utf-8")

    assert "sampler&#39;s and the learner&#39;s logprobs" in curves("gap", **{"policy/sampler_gap": 0.001})
    assert "the learner&#39;s logprobs" not in curves("none")
