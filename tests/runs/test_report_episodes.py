"""The report's episodes: before and after, and token by token, true to what is stored and harmless whatever it says."""

import json
import re

import pytest
from test_report import Page, make_run, read_page

from chat_families import family
from turnwise.render import make_render
from turnwise.runs import write_trajectories
from turnwise.runs.report.samples import split_pieces
from turnwise.runs.report.writer import write_report
from turnwise.types import Group, Message, StopReason, Task, Trajectory, Turn

EVIL = "<script>alert(1)</script>&lt;b&gt;"
RENDER = make_render(family("qwen2.5"))


def episode(task, reward, said=None, *, rewrites=False):
    """Two turns, the second of which is paid."""
    asked = (Message(role="system", content="Be brief."), Message(role="user", content=f"Question {task}?"))
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "Oslo"}}\n</tool_call>'
    first = RENDER.encode_action(f"<think>\nLook.\n</think>\n\n{call}")
    found = (Message(role="tool", content=f"Found {EVIL}", tool_call_id="call_0", name="search"),)
    reply = RENDER.encode_action(said or f"Answer to {task}")
    second = RENDER.start(asked, ()) if rewrites else RENDER.extend(first, found)
    turns = (
        Turn(context_ids=RENDER.start(asked, ()), action_ids=first, logprobs=(-0.5,) * len(first), opens_row=True),
        Turn(
            context_ids=second,
            action_ids=reply,
            logprobs=tuple(-place / 8 for place in range(len(reply))),
            rewards={"exact_match": reward, "format": -0.25},
            opens_row=rewrites,
            version=3,
        ),
    )
    return Trajectory(task=Task(id=f"task-{task}"), turns=turns, stop=StopReason.DONE)


def store(run, stage, step, groups, per_token=None):
    run.trajectories.mkdir(exist_ok=True)
    made = [Group(task=members[0].task, trajectories=tuple(members)) for members in groups]
    write_trajectories(run.trajectory_file(stage, step), step, made, per_token, RENDER.decode)


def add_tokenizer(run):
    folder = run.checkpoints / "step-000000" / "model"
    folder.mkdir(parents=True)
    family("qwen2.5").backend_tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "lake")
    store(run, "evaluate", 0, [[episode(place, reward)] for place, reward in enumerate((0.0, 0.25, 0.0, -1.0, 0.0))])
    failed = Trajectory(task=Task(id="task-9"), turns=(), stop=StopReason.ENV_FAILED, failure="no network")
    store(run, "evaluate", 2, [[episode(place, reward)] for place, reward in enumerate((1.0, 0.5, 0.0))] + [[failed]])
    return run


def cards(page: str) -> list[tuple[str, str, str]]:
    """What each card is, its reward, and its question."""
    found = re.findall(
        r'<span class="what">(.*?)</span><span class="pill \w+">reward <b>(.*?)</b>.*?"ask">(.*?)<', page
    )
    return [tuple(one) for one in found]


def test_the_best_the_median_and_the_worst_before_and_after(run):
    text = write_report(run).read_text()
    assert cards(text) == [
        ("best", "+0", "Question 1?"),
        ("median", "-0.25", "Question 2?"),
        ("worst", "-1.25", "Question 3?"),
        ("best", "+0.75", "Question 0?"),
        ("median", "+0.25", "Question 1?"),
        ("worst", "-0.25", "Question 2?"),
    ], "an episode that failed is none of them"
    titles = re.findall(r"<h3>(before.*?|after.*?)</h3>", text)
    assert titles == ["before step 1", "after step 2"]
    assert text.count('<details class="card" open>') == 2, "the best of each is open"


def test_before_is_the_untrained_model_where_it_was_evaluated(run):
    store(run, "untrained", 0, [[episode(7, 0.0)]])
    text = write_report(run).read_text()
    assert "<h3>before any training</h3>" in text
    assert cards(text)[0] == ("best", "-0.25", "Question 7?")


def test_a_conversation_has_its_parts_and_its_rewards_where_they_were_earned(run):
    text = write_report(run).read_text()
    first = text[text.index('<details class="card" open>') :].partition('<p class="soft foot">')[0]
    roles = re.findall(r'<div class="message (\w+)">', first)
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    call, reply = first.split('<div class="message assistant">')[1:]
    assert '<p class="thought">Look.</p>' in call
    assert re.search(r'<details class="call"><summary><b>search</b> {&#34;query&#34;: &#34;Oslo&#34;}</summary>', call)
    assert "pill" not in call.partition('<div class="message tool">')[0], "the call earned nothing"
    assert re.findall(r'pill (\w+)">(\w+) <b>(.*?)</b>', reply) == [
        ("plus", "exact_match", "+0.25"),
        ("minus", "format", "-0.25"),
    ]
    tool = first.partition('<div class="message tool">')[2]
    assert "<details><summary>Found &lt;script&gt;" in tool, "what a tool answers is folded, and text"


def test_what_a_model_or_a_tool_writes_harms_nobody(run):
    add_tokenizer(run)
    store(run, "train", 2, [[episode(EVIL, 1.0, EVIL), episode(EVIL, 0.0)]])
    page = read_page(run)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed"}
    assert not [name for _, given in page.tags for name in given if name.startswith("on")]
    assert not [value for _, given in page.tags for name, value in given.items() if name in ("src", "href")]
    policy = [given["content"] for tag, given in page.tags if given.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert EVIL in page.words["Token by token"].replace("\n", ""), "shown, not obeyed"


class Tokens(Page):
    """The tokens of a token view: text and title of what was sampled and of what was read."""

    def __init__(self, text: str) -> None:
        self.sampled: list[list[str]] = []
        self.read: list[list[str]] = []
        self.signs: list[str] = []
        super().__init__(text)

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        given = dict(attrs)
        if "title" in given and tag in ("b", "span"):
            (self.sampled if tag == "b" else self.read).append([given["title"], ""])
            self.signs += [given.get("class") or ""] if tag == "b" else []
            self.current = (self.sampled if tag == "b" else self.read)[-1]
        elif tag != "title":
            self.current = None

    def handle_endtag(self, tag):
        super().handle_endtag(tag)
        self.current = None

    def handle_data(self, data):
        super().handle_data(data)
        if getattr(self, "current", None) is not None:
            self.current[1] += data


def test_every_token_has_its_stored_numbers(run):
    add_tokenizer(run)
    played = episode("Ørsted", 1.0)
    count = played.action_tokens
    advantages = [(-1) ** place * place / 4 for place in range(count)]
    own = [-place / 8 - 0.001 for place in range(count - 1)] + [float("nan")]
    per_token = {
        "advantages": {(0, 0): advantages},
        "learner_logprobs": {(0, 0): own},
        "entropies": {(0, 0): [place / 16 for place in range(count)]},
    }
    store(run, "train", 2, [[played]], per_token)
    page = Tokens(write_report(run).read_text())
    ids = [token for turn in played.turns for token in turn.action_ids]
    assert len(page.sampled) == count
    assert "".join(text for _, text in page.sampled).replace("↵", "") == RENDER.decode(ids)
    read = [token for turn in played.turns for token in turn.context_ids]
    assert [note for note, _ in page.read] == [f"id {token}" for token in read]
    assert "".join(text for _, text in page.read) == RENDER.decode(read)
    logprobs = [logprob for turn in played.turns for logprob in turn.logprobs]
    for place, (note, _) in enumerate(page.sampled):
        numbers = dict(part.split(" ", 1) for part in note.split(" · ") if not part.startswith("weights"))
        assert numbers["id"] == str(ids[place])
        assert float(numbers["logprob"]) == pytest.approx(logprobs[place], rel=1e-3)
        assert float(numbers["advantage"]) == pytest.approx(advantages[place], rel=1e-3)
        assert float(numbers["entropy"]) == pytest.approx(place / 16, rel=1e-2)
        assert ("learner" in numbers) == (place < count - 1), "the last is unknown"
    assert page.signs == ["" if not one else "plus" if one > 0 else "minus" for one in advantages]
    assert [given["id"] for tag, given in page.tags if tag == "input"] == [
        f"paint-{mode}" for mode in ("role", "advantage", "logprob", "entropy", "gap")
    ]


def test_the_group_that_teaches_most_is_shown(run):
    add_tokenizer(run)
    equal, varied = [episode(1, 1.0)] * 3, [episode(2, reward) for reward in (0.0, 1.0, 0.5)]
    store(run, "train", 1, [varied])
    store(run, "train", 2, [equal, varied])
    text = write_report(run).read_text()
    assert re.findall(r'<span class="what">(train-.*?)</span>', text) == ["train-2/1/1", "train-2/1/2", "train-2/1/0"]
    assert 'id="paint-role" checked' in text
    assert "paint-advantage" not in text.partition("<body>")[2], "none are stored"


def test_a_rewrite_is_drawn(run):
    add_tokenizer(run)
    store(run, "train", 2, [[episode(1, 1.0, rewrites=True)]])
    assert "a new row: the environment rewrote the conversation" in write_report(run).read_text()


def test_without_a_tokenizer_there_is_no_token_view(run):
    store(run, "train", 2, [[episode(1, 1.0)]])
    assert "Token by token" not in write_report(run).read_text()


@pytest.mark.parametrize("broken", ["evaluate-000002.parquet", "train-000002.parquet", "tokenizer.json"])
def test_a_broken_file_costs_its_episodes_alone(run, broken, caplog):
    add_tokenizer(run)
    store(run, "train", 2, [[episode(1, 1.0)]])
    (file,) = run.path.rglob(broken)
    file.write_bytes(b"PAR1 half of it")
    page = read_page(run)
    assert "Where the time went" in page.words
    assert ("Token by token" in page.words) == (broken == "evaluate-000002.parquet")
    assert broken in caplog.text


def test_a_curve_for_each_reward_channel(tmp_path):
    records = [
        {
            "step": step,
            "stage": "train",
            "time": 0.0,
            "rollout/reward": 1.0,
            "reward/game": 0.5 * step,
            "reward/format": 0.1,
        }
        for step in (1, 2)
    ]
    text = write_report(make_run(tmp_path / "two", records)).read_text()
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles == ["Reward", "Reward: format", "Reward: game"]
    alone = [{name: value for name, value in record.items() if name != "reward/format"} for record in records]
    text = write_report(make_run(tmp_path / "one", alone)).read_text()
    assert re.findall(r"<h3>(.*?)</h3>", text) == ["Reward"], "a single channel is the reward"


def test_pieces_are_the_text_whatever_the_tokens():
    """Bytes of one character in several tokens, as byte-level tokenizers write them."""

    def decode(ids):
        return bytes(ids).decode("utf-8", "replace")

    text = "aØ→🙂b"
    pieces = split_pieces(list(text.encode()), decode)
    assert "".join(pieces) == text
    assert pieces == ["a", "", "Ø", "", "", "→", "", "", "", "🙂", "b"]
    torn = list("ok→".encode())[:-1]
    assert "".join(split_pieces(torn, decode)) == decode(torn), "a character that never came whole is shown"
    assert split_pieces([], decode) == []


def test_a_long_episode_is_shown_in_part(run):
    add_tokenizer(run)
    turn = Turn(context_ids=tuple([5] * 4000), action_ids=(6,), logprobs=(0.0,), opens_row=True)
    long = Trajectory(task=Task(id="t"), turns=(turn,), stop=StopReason.DONE)
    store(run, "train", 2, [[long]])
    assert "1,001 more tokens" in write_report(run).read_text()


def test_a_real_run_has_all_of_it(tmp_path):
    from tiny_runs import run_tiny

    done = run_tiny(tmp_path / "run", steps=1, evaluate={"tasks": 4, "every": 1}, learner={"optimizer": {"lr": 1e-3}})
    page = Tokens((done.path / "report.html").read_text())
    assert {"Episodes, before and after", "Token by token"} <= page.words.keys()
    modes = [given["id"] for tag, given in page.tags if tag == "input"]
    assert modes == [f"paint-{mode}" for mode in ("role", "advantage", "logprob", "entropy", "gap")]
    gaps = [float(re.search(r"gap ([\d.e+-]+)", note).group(1)) for note, _ in page.sampled]
    assert max(gaps) < 1e-3, "sampler and learner agree"
    assert json.loads((done.path / "metrics.jsonl").read_text().splitlines()[0])["stage"] == "evaluate"
