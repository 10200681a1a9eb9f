"""How good, and how sure: intervals against known values, and failures that are not scored."""

import asyncio
import io
import json
import re

import numpy as np
import pytest
import yaml
from rich.console import Console

from chat_stub import says, serve
from tiny_runs import SFT, model_folder, records, run_tiny, tiny_data
from turnwise.agents import PolicyAgent
from turnwise.cli.main import main
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError
from turnwise.evaluation import (
    EvaluateSettings,
    Evaluation,
    Slice,
    clustered_interval,
    evaluate,
    pass_at_k,
    wilson_interval,
)
from turnwise.evaluation.evaluate import choose_fields, score
from turnwise.evaluation.report import show_evaluation, write_answers
from turnwise.models.small import SmallSettings, train_tokenizer
from turnwise.render import make_render
from turnwise.rewards import exact_match_reward
from turnwise.runs import read_trajectories
from turnwise.targets import load_target
from turnwise.types import Group, Message, StopReason, Task, Trajectory, Turn


def response(success, *, stop=StopReason.DONE, reward=0.0, turns=1, **metrics):
    said = Turn(message=Message(role="assistant", content="x"), rewards={"r": reward})
    return Trajectory(
        task=Task(id="t"), turns=(said,) * turns, stop=stop, metrics={"success": float(success), **metrics}
    )


def group_of(data, *responses):
    return Group(task=Task(id="t", data=data), trajectories=responses)


def test_samples_of_one_task_are_not_independent():
    """Ten tasks, each always or never solved: eighty episodes tell no more than ten."""
    results = [group_of({}, *[response(place < 5)] * 8) for place in range(10)]
    scores = score(results)
    assert scores.interval == clustered_interval([8] * 5 + [0] * 5, [8] * 10)
    wide, narrow = scores.interval[1] - scores.interval[0], np.subtract(*wilson_interval(40, 80)[::-1])
    assert wide > 2 * narrow
    assert scores.pass_at == {1: 0.5, 2: 0.5, 4: 0.5, 8: 0.5}
    one_each = score([group_of({}, response(place < 5)) for place in range(10)])
    assert one_each.interval == wilson_interval(5, 10)
    assert one_each.pass_at == {}


def test_a_task_counts_once_however_many_of_its_samples_were_scored():
    """One task solved four times; of the other three, infrastructure left one failure each: 1 of 4, not 4 of 7."""
    broken = [response(False, stop=StopReason.ENV_FAILED)] * 3
    results = [group_of({}, *[response(True)] * 4)] + [group_of({}, response(False), *broken) for _ in range(3)]
    scores = score(results)
    assert (scores.success, scores.pass_at[1], scores.episodes, scores.failed) == (0.25, 0.25, 7, 9)
    assert scores.interval == clustered_interval([4, 0, 0, 0], [4, 1, 1, 1])
    assert scores.interval[0] <= scores.success <= scores.interval[1]


def test_a_metric_is_averaged_over_the_episodes_that_have_it():
    results = [group_of({}, response(True, depth=2.0)), group_of({}, response(True)), group_of({}, response(False))]
    assert score(results).metrics()["env/depth"] == 2.0


class Quiz(ToolEnv):
    def __init__(self):
        tasks = [
            {"question": question, "answers": ["yes"], "hops": hops, "source": source}
            for question, hops, source in (
                ("one?", 2, "a"),
                ("two?", 10, "a"),
                ("broken?", 2, "b"),
                ("three?", 2, ""),
            )
        ]
        super().__init__(tasks={"test": tasks}, rewards=[exact_match_reward.weighted(2.0)])

    def begin(self, task, episode_seed):
        if task.data["question"] == "broken?":
            raise ConnectionError("no simulator")


@pytest.fixture(scope="module")
def quizzed():
    """Two responses to each question; the second question is always answered wrongly."""
    render = make_render(train_tokenizer(["yes no"], SmallSettings(vocabulary=270)))

    def reply(session, prompt):
        return f"<answer>{'no' if 'two?' in render.decode(prompt) else 'yes'}</answer>"

    env, told = Quiz(), []
    result = asyncio.run(
        evaluate(
            PolicyAgent(engine=ScriptedEngine(reply, render.encode_action), render=render),
            env,
            env.tasks("test"),
            samples_per_task=2,
            progress=lambda done, total: told.append((done, total)),
        )
    )
    return result, told


def test_failures_are_not_scored(quizzed):
    result, told = quizzed
    low, high = clustered_interval([2, 0, 2], [2, 2, 2])
    assert (result.success, result.episodes, result.interval) == (pytest.approx(4 / 6), 6, (low, high))
    assert result.reward == pytest.approx(2 * 4 / 6)
    assert [group.trajectories[0].stop for group in result.groups] == [
        StopReason.DONE,
        StopReason.DONE,
        StopReason.ENV_FAILED,
        StopReason.DONE,
    ]
    assert told[-1] == (8, 8)
    whole = {name: value for name, value in result.metrics().items() if "=" not in name}
    assert whole == {
        "evaluate/success": result.success,
        "evaluate/success_low": low,
        "evaluate/success_high": high,
        "evaluate/reward": result.reward,
        "evaluate/turns": 1.0,
        "evaluate/tasks": 4.0,
        "evaluate/episodes": 6.0,
        "evaluate/failed": 2.0,
        "evaluate/pass@1": pytest.approx(2 / 3),
        "evaluate/pass@2": pytest.approx(2 / 3),
        "evaluate/env/exact_match": pytest.approx(2 / 3),
    }
    assert str(result) == f"success 0.667 [{low:.3f}, {high:.3f}], reward 1.333, 6 episodes, 2 failed"


def test_figures_are_told_apart_by_what_tasks_say(quizzed):
    """Numbers in the order of their size; a source that is not named is a dash."""
    result, _ = quizzed
    told = {(part.field, part.value): part.scores for part in result.slices}
    assert list(told) == [("hops", "2"), ("hops", "10"), ("source", "a"), ("source", "b"), ("source", "–")]
    assert [figures.success for figures in told.values()] == [1.0, 0.0, 0.5, 0.0, 1.0]
    assert [figures.episodes for figures in told.values()] == [4, 2, 4, 0, 2]
    assert [figures.failed for figures in told.values()] == [2, 0, 0, 2, 0]
    metrics = result.metrics()
    assert metrics["evaluate/hops=10/success"] == 0.0
    assert metrics["evaluate/source=a/pass@2"] == 0.5
    assert metrics["evaluate/source=b/success_high"] == 1.0


def tasks_of(*data):
    return [Task(id=str(place), data=one) for place, one in enumerate(data)]


def test_which_fields_tell_apart():
    few = tasks_of({"hops": 2, "level": "easy"}, {"hops": 3})
    assert choose_fields(few, None) == ("hops",)
    assert choose_fields(few, ["level"]) == ("level",)
    assert choose_fields(few, []) == ()
    assert choose_fields(tasks_of({}, {}), None) == ()
    urls = tasks_of(*({"source": f"http://x/{place}"} for place in range(21)))
    assert choose_fields(urls, None) == ()
    assert choose_fields(urls, ["source"]) == ("source",)
    with pytest.raises(
        ConfigError, match=r"^evaluate\.group_by: no task has 'hop' in its data; they have: hops, level$"
    ):
        choose_fields(few, ["hop"])


def test_every_question_has_its_line(quizzed, tmp_path):
    result, _ = quizzed
    file = tmp_path / "answers.jsonl"
    write_answers(file, result)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    right = {"answer": "yes", "success": True, "reward": 2.0, "turns": 1, "stop": "done"}
    assert lines[0] == {
        "id": "test-0",
        "question": "one?",
        "answers": ["yes"],
        "by": {"hops": 2, "source": "a"},
        "responses": [right, right],
    }
    assert lines[1]["responses"][0] == {**right, "answer": "no", "success": False, "reward": 0.0}
    failed = lines[2]["responses"][1]
    assert failed.pop("failure").startswith("task 'test-2': reset: ConnectionError: no simulator (")
    assert failed == {
        "answer": None,
        "success": None,
        "reward": None,
        "turns": 0,
        "stop": "env_failed",
    }
    bare = [group_of({"answer": 7}, response(True)), group_of({}, response(True))]
    write_answers(file, Evaluation(scores=result.scores, groups=bare))
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    assert [sorted(one) for one in answers] == [["answers", "id", "responses"]] * 2
    assert [one["answers"] for one in answers] == [[7], []]


def shown(evaluation, **console):
    page = Console(width=140, file=io.StringIO(), no_color=True, **console)
    show_evaluation(page, "m", evaluation)
    return re.sub(r"\x1b\[[0-9;]*m", "", page.file.getvalue())


def test_lines_and_tables_tell_the_same(quizzed):
    result, _ = quizzed
    lines = shown(result, force_terminal=False).splitlines()
    assert lines[0] == "hops=2: success 1.000 [0.000, 1.000], reward 2.000, 4 episodes, 2 failed"
    assert lines[5] == "pass@1 0.667, pass@2 0.667"
    assert lines[6] == "exact_match 0.667"
    assert lines[7] == f"m: {result}"
    table = shown(result, force_terminal=True)
    assert "m: success on 4 tasks" in table
    row = next(line for line in table.splitlines() if "hops 10" in line)
    assert [cell.strip() for cell in re.split("[│|]", row)][2:] == [
        "0.000",
        "[0.000, 1.000]",
        "0.000",
        "0.000",
        "0.000",
        "1.0",
        "2",
        "",
    ]
    assert "4 (+2 failed)" in table
    one_each = [group_of({"source": "[red]"}, response(place < 5)) for place in range(10)]
    slices = (Slice(field="source", value="[red]", scores=score(one_each)),)
    table = shown(Evaluation(scores=score(one_each), slices=slices, groups=one_each), force_terminal=True)
    assert "source [red]" in table
    assert "pass@" not in table


def test_evaluation_is_greedy_unless_told_otherwise():
    sampling = EvaluateSettings().sampling(max_tokens=3, stop_ids=(2,), seed=0)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recipe, and its run with checkpoints after the cold start and after one step."""
    folder = tmp_path_factory.mktemp("evaluate")
    recipe = folder / "game.yaml"
    data = tiny_data(sft=SFT, evaluate={"tasks": 8})
    recipe.write_text(yaml.safe_dump(data))
    return recipe, run_tiny(folder / "run", sft=SFT, evaluate={"tasks": 8})


def figures_of(capsys, *arguments):
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_any_checkpoint_of_a_run_can_be_evaluated(trained, capsys):
    """By the run, by the folder of a checkpoint, by that of its model, and by a recipe and the model: the same."""
    recipe, run = trained
    first, last = records(run, "evaluate")
    newest = figures_of(capsys, run.path)
    assert newest["metrics"]["evaluate/success"] == last["evaluate/success"]
    assert (newest["env"], newest["split"], newest["samples_per_task"], newest["seed"]) == (
        tiny_data()["env"]["name"],
        "test",
        1,
        0,
    )
    before = figures_of(capsys, model_folder(run, 0))
    assert before["model"] == str(model_folder(run, 0))
    assert before["metrics"]["evaluate/reward"] == first["evaluate/reward"]
    assert figures_of(capsys, model_folder(run, 0).parent) == before
    assert figures_of(capsys, recipe, "--model", model_folder(run, 0)) == before
    assert figures_of(capsys, run.path, "--model", model_folder(run, 0).parent) == before


def test_eval_end_to_end(trained, tmp_path, capsys, caplog):
    _, run = trained
    saved, answers = tmp_path / "seen.parquet", tmp_path / "answers.jsonl"
    more = ["evaluate.temperature=1", "evaluate.samples_per_task=4", "evaluate.tasks=3"]
    assert main(["eval", str(run.path), *more, "--save", str(saved), "--answers", str(answers), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert (metrics["evaluate/episodes"], metrics["evaluate/tasks"]) == (12, 3)
    groups = read_trajectories(saved)
    counts = [sum(t.success for t in group.trajectories) for group in groups]
    assert metrics["evaluate/pass@2"] == pytest.approx(sum(pass_at_k(4, c, 2) for c in counts) / 3)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [[one["success"] for one in line["responses"]] for line in lines] == [
        [t.success for t in group.trajectories] for group in groups
    ]
    assert {one["answer"] for line in lines for one in line["responses"]} & {"up", "down", "left", "right"}
    assert main(["eval", str(run.path), "evaluate.samples_per_task=2", "evaluate.tasks=2"]) == 0
    assert "samples differ by episode seed alone" in caplog.text
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{model_folder(run, 1)}: success")


SOLVED = ("up", "left")


def test_an_endpoint_plays_a_recipe_end_to_end(trained, tmp_path, capsys, monkeypatch):
    recipe, _ = trained
    monkeypatch.setenv("STUB_KEY", "not-a-real-key")
    answers = tmp_path / "answers.jsonl"
    saved = tmp_path / "seen.parquet"

    def play(body, number):
        return says(SOLVED[sum(message["role"] == "assistant" for message in body["messages"])])

    with serve(play) as stub:
        command = ["eval", str(recipe), "evaluate.tasks=3", "--endpoint", stub.url, "--api-model", "someone"]
        options = ["--key-env", "STUB_KEY", "--api", "concurrency=1", "--api", "options.seed=null"]
        assert main([*command, *options, "--answers", str(answers), "--save", str(saved), "--json"]) == 0
        out = capsys.readouterr().out
        assert main(command) == 0
        plain = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(out)
    assert (found["model"], found["metrics"]["evaluate/success"], found["metrics"]["evaluate/turns"]) == (
        "someone",
        1,
        2,
    )
    assert plain == "someone: success 1.000 [0.439, 1.000], reward 1.000, 3 episodes"
    assert stub.asked[0][1]["Authorization"] == "Bearer not-a-real-key"
    body = stub.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("someone", 0.0, 4)
    assert "seed" not in body
    line = json.loads(answers.read_text().splitlines()[0])
    assert [message["content"] for message in line["responses"][0]["messages"]] == ["sun", "up", "sea", "left"]
    assert "not-a-real-key" not in out + answers.read_text()
    stored = [trajectory for group in read_trajectories(saved) for trajectory in group.trajectories]
    assert [(len(one.turns), one.reward, one.has_tokens) for one in stored] == [(2, 1.0, False)] * 3
    assert [message.content for message in stored[0].messages] == ["sun", "up", "sea", "left"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "http://127.0.0.1:9/v1"], "--endpoint: say which of its models plays: --api-model NAME"),
        (["--api-model", "m"], "name it by --endpoint URL"),
        (["--endpoint", "nowhere", "--api-model", "m"], "'nowhere' is not the address of an endpoint"),
        (["--endpoint", "http://x/v1", "--api-model", "m", "--api", "tiemout=3"], "did you mean 'timeout'?"),
        (["--endpoint", "http://x/v1", "--api-model", "m", "--model", "n"], "give one of them"),
        (
            ["--endpoint", "http://x/v1", "--api-model", "m", "--save", "no/such/folder.parquet"],
            "no/such/folder.parquet: cannot be written: there is no folder",
        ),
        (["--endpoint", "http://x/v1", "--api-model", "m", "--key-env", "NO_SUCH"], "key_env is NO_SUCH"),
        (["--answers", "no/such/folder.jsonl"], "no/such/folder.jsonl: cannot be written: there is no folder"),
        (["evaluate.group_by=[hops]"], "evaluate.group_by: no task has 'hops' in its data; they have: none"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments, words, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(trained[0]), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_model_alone_does_not_say_what_it_is_to_do(trained, tmp_path):
    for what in ("Qwen/Qwen2.5-0.5B-Instruct", "some-model"):
        with pytest.raises(ConfigError, match=rf"turnwise eval RECIPE --model {what}"):
            load_target(what)
    assert load_target("encyclopedia-grpo").env.name == "encyclopedia", "a recipe of the package, by its name"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="a model, not a run"):
        load_target(str(tmp_path / "model"))
    config = load_target(str(trained[0]), ["model.small.layers=2"], model="Qwen/Qwen2.5-0.5B-Instruct")
    assert (config.model.name, config.model.small.layers) == ("Qwen/Qwen2.5-0.5B-Instruct", 2)
