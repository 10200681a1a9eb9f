"""Figures of real runs come from the runs' own files, by one command each."""

import asyncio
import gzip
import json
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.real.__main__ import main
from benchmarks.real.answers import Answered, compare_answers, measure_overlap
from tiny_runs import SFT, run_tiny
from turnwise.envs.games.frozen_lake import FrozenLake
from turnwise.envs.games.sokoban.env import Sokoban


def ask(source="2wiki", type="comparison", ids=("a", "b"), before=0.0, after=0.0, found=(False, True)):
    return Answered(
        source=source,
        type=type,
        supporting_ids=ids,
        before=before,
        after=after,
        found_before=found[0],
        found_after=found[1],
    )


def test_a_comparison_counts_what_was_won_and_lost():
    answers = [ask(after=1.0)] * 6 + [ask(before=1.0)] + [ask(source="hotpot", type="bridge")] * 3
    found = compare_answers(answers)
    assert found["by_type"] == {
        "2wiki comparison": {"questions": 7, "before": 0.143, "after": 0.857},
        "hotpot": {"questions": 3, "before": 0.0, "after": 0.0},
    }
    paired = found["paired"]
    assert (paired["won"], paired["lost"], paired["difference"]) == (6, 1, 0.5)
    assert paired["low"] < 0.5 < paired["high"]
    assert paired["mcnemar_exact_p"] == 0.125  # 2 · (1 + 7) / 2^7
    assert found["all_supporting_passages_found"] == {
        "before": 0.0,
        "after": 1.0,
        "success_when_found_before": 0.0,
        "success_when_found_after": 0.6,
    }


def test_overlap_is_of_whole_sets_and_of_single_passages():
    answers = [ask(ids=("a", "b"), after=1.0), ask(ids=("a", "z"), after=1.0), ask(ids=("y", "z"))]
    found = measure_overlap(answers, written=[("a", "b", "c", "d")], real=[("q", "r")])
    assert found["all_passages_in_one_written_question"] == {"questions": 1, "before": 0.0, "after": 1.0}
    assert found["others"]["questions"] == 2
    assert found["others"]["after"] == 0.5
    assert found["no_passage_in_any_training_question"] == {"questions": 1, "before": 0.0, "after": 0.0}


def test_the_host_plays_a_stored_step_again_token_by_token(tmp_path, capsys):
    run = run_tiny(tmp_path / "run", steps=2)
    assert main(["host", str(run.path), "--rounds", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4
    seconds = found["seconds"]
    assert seconds["whole"] >= seconds["decode"] > 0
    assert {"environment", "render", "prefill", "store"} <= seconds.keys()


def test_the_curve_of_a_run_is_read_from_its_metrics(tmp_path, capsys):
    run = run_tiny(tmp_path / "run", sft=SFT, steps=2)
    assert main(["curve", str(run.path), "--steps", "2:2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["stage"], one["step"]) for one in found["curve"]][-1] == ("evaluate", 2)
    assert found["sft"]["tokens"] > 0
    assert found["train"]["steps"] == len(found["train"]["success"]) == 2
    assert found["step_medians"]["steps"] == "2 to 2"
    assert found["step_medians"]["time/update_seconds"] > 0


def write_answers(file, solved):
    task = {"data": {"source": "2wiki", "type": "comparison", "supporting_ids": ["a", "b"]}}
    rows = [
        {
            "task_id": f"q{place}",
            "task": json.dumps(task),
            "metrics": {"gold_recall": 1.0} | ({} if success is None else {"success": success}),
        }
        for place, success in enumerate(solved)
    ]
    metrics = pa.map_(pa.string(), pa.float64())
    schema = pa.schema([("task_id", pa.string()), ("task", pa.string()), ("metrics", metrics)])
    pq.write_table(
        pa.Table.from_pylist([row | {"metrics": list(row["metrics"].items())} for row in rows], schema), file
    )


def test_answers_are_compared_by_question_and_with_training_files(tmp_path, capsys):
    before, after, written = (tmp_path / name for name in ("before.parquet", "after.parquet", "written.jsonl.gz"))
    write_answers(before, [0.0, 1.0, 0.0])
    write_answers(after, [1.0, 1.0, 0.0])
    written.write_bytes(gzip.compress(json.dumps({"supporting_ids": ["a", "b"]}).encode() + b"\n"))
    assert main(["answers", str(before), str(after), "--written", str(written)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["paired"]["won"], found["paired"]["lost"]) == (1, 0)
    assert found["overlap"]["all_passages_in_one_written_question"]["questions"] == 3
    write_answers(after, [1.0])
    with pytest.raises(SystemExit, match="not of the same questions"):
        main(["answers", str(before), str(after)])


def test_an_episode_that_was_cut_off_before_its_answer_has_not_answered(tmp_path, capsys):
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    write_answers(before, [1.0, 0.0, None])
    write_answers(after, [None, 1.0, 1.0])
    assert main(["answers", str(before), str(after)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["paired"]["won"], found["paired"]["lost"]) == (2, 1)


def test_habits_are_queries_asked_again_and_ends_without_an_answer(tmp_path, capsys):
    def search(query):
        return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call><|im_end|>'

    answer = "So it is. <answer> Vardo </answer><|im_end|>"
    episodes = [
        [search("Lumen"), search("Ada"), answer],
        [search("Lumen"), search("Lumen"), answer],
        [search("Lumen"), search("Lumen"), search("Lumen")],
        [search("Lumen"), "I do not know.<|im_end|>"],
    ]
    file = tmp_path / "evaluate-000020.parquet"
    pq.write_table(pa.Table.from_pylist([{"turns": [{"action_text": text} for text in one]} for one in episodes]), file)
    assert main(["habits", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {str(file): {"episodes": 4, "repeated_a_query": 0.5, "without_an_answer": 0.5}}


@pytest.mark.parametrize(
    ("question", "reply", "follows"),
    [
        ("Who died later, Ada or Bo?", "Ada died in 1950. Bo died in 1930. 1930 is before 1950. {Ada}", True),
        ("Who died later, Ada or Bo?", "Ada died in 1950. Bo died in 1930. 1930 is before 1950. {Bo}", False),
        ("Which film came out first, Up, Down or Sea?", "It: 1950. It: 1930. 1930 is before 1950. {sea}", True),
        ("Who is older, Ada or Bo?", "Ada was born in 1930. Bo was born in 1950. 1930 is before 1950. {Cy}", False),
        ("Who is older, Ada or Bo?", "Ada was born in 1930. Bo was born in 1950. 1930 is before 1950.", False),
        ("Who is older, Ada or Bo?", "{Ada}", None),
        ("Who is older, Ada or Bo?", "Both in 1930. And 1930. 1930 is before 1930. {Ada}", None),
        ("Where was Ada born?", "In 1930 in Oslo, in 1950. 1930 is before 1950. {Oslo}", None),
    ],
)
def test_an_answer_is_held_against_the_years_of_its_own_reply(question, reply, follows, tmp_path, capsys):
    text = reply.replace("{", "<answer> ").replace("}", " </answer>") + "<|im_end|>"
    task = json.dumps({"data": {"question": question}})
    file = tmp_path / "greedy.parquet"
    turns = [{"action_text": "search"}, {"action_text": text}]
    metrics = pa.array([[("success", 1.0)]], pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table({"task": [task], "turns": [turns], "metrics": metrics}), file)
    assert main(["conclusions", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)[str(file)]
    assert (found["comparisons_with_years"], found["answer_follows"]) == (
        int(follows is not None),
        float(bool(follows)),
    )
    assert found["exact_match"] == float(follows is not None), "apart from whether it follows"


def test_thoughts_and_steps_on_the_lake_are_checked_against_the_map(tmp_path, capsys):
    """Two episodes of one reply each: the first names both places truly, the second neither."""
    env = FrozenLake(size=4, slippery=True, test_tasks=512)
    task = env.tasks("test")[0]

    def reply(facts, action):
        (a, b), (c, d) = facts
        thought = f"<think>The player is at ({a}, {b}). The goal is at ({c}, {d}).</think>"
        return {"action_text": f"{thought}<answer>{action}</answer><|im_end|>"}

    game = env.spawn()
    asyncio.run(game.reset(task, 7))
    true, best = game.facts(), game.plan()[0]
    worse = next(action for action in ("Up", "Down") if action != best)
    replies = [reply((true["player"], true["goal"]), best), reply(((9, 9), (9, 9)), worse)]
    stored = json.dumps({"id": task.id, "seed": task.seed, "data": {}})
    rows = [{"task_id": task.id, "task": stored, "episode_seed": 7, "turns": [one]} for one in replies]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "episodes.parquet")
    assert main(["frozen-lake", str(tmp_path / "episodes.parquet")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["thoughts_with_the_players_true_place"] == 0.5
    assert found["thoughts_with_the_goals_true_place"] == 0.5
    assert found["steps_as_the_solver"] == 0.5
    assert found["thoughts_with_all_reasons_true"] == 0.0, "places alone are no reasons"
    assert found["same_first_action"] == 0.5, "each of the task's two episodes begins its own way"
    assert main(["frozen-lake", *[str(tmp_path / "episodes.parquet")] * 2]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["steps_as_the_solver"] == found["steps_as_the_solver"], "the same episodes twice"
    assert 0 <= found["random_play_on_the_same_maps_and_slips"] <= 1


def test_plans_of_sokoban_are_checked_against_the_level(tmp_path, capsys):
    """Two episodes: the expert's own, and one that names wrong places and walks into a wall."""
    env = Sokoban(size=6, boxes=1, expert_reasons=True)
    task = next(task for task in env.tasks("test") if 3 <= len(shortest(env, task)) <= 5)
    game = env.spawn()
    asyncio.run(game.reset(task, 7))
    expert, moves = game.expert(), len(game.plan())
    good = f"<think>{expert.thinking}</think>{expert.content}<|im_end|>"
    bad = "<think>The player is at (0, 0). The box is at (0, 0).</think><answer>Nowhere</answer><|im_end|>"
    stored = json.dumps({"id": task.id, "seed": task.seed, "data": {}})
    rows = [
        {"task_id": task.id, "task": stored, "episode_seed": 7, "turns": [{"action_text": one}]} for one in (good, bad)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "episodes.parquet")
    assert main(["sokoban", str(tmp_path / "episodes.parquet")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["success"] == 0.5
    assert found["success_low"] < 0.5 < found["success_high"]
    assert [found[f"thoughts_with_the_{kind}s_true_place"] for kind in ("player", "box", "target")] == [0.5] * 3
    assert (found["players_true_place_in_first_turns"], found["later_turns"]) == (0.5, 0)
    assert found["first_turns_that_begin_a_shortest_solution"] == 0.5
    assert found["by_moves_of_the_shortest_solution"] == {str(moves): {"levels": 2, "success": 0.5}}


def shortest(env, task):
    game = env.spawn()
    asyncio.run(game.reset(task, 0))
    return game.plan()


def test_curves_of_two_runs_are_drawn_with_their_rollbacks(tmp_path, capsys):
    for name in ("auto", "monitor"):
        run = tmp_path / name
        run.mkdir()
        records = [{"stage": "evaluate", "step": 0, "evaluate/success": 0.25}]
        records += [{"stage": "train", "step": step, "rollout/success": 0.1 * step} for step in range(1, 4)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    found = [{"step": 2, "kind": "echo_trap"}, {"step": 2, "kind": "enable_starpo_s", "rollback_to": 1}]
    (tmp_path / "auto" / "findings.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in found), encoding="utf-8"
    )
    to = tmp_path / "curves.svg"
    assert main(["plot", str(tmp_path / "auto"), str(tmp_path / "monitor"), "--to", str(to)]) == 0
    capsys.readouterr()
    svg = ElementTree.fromstring(to.read_text(encoding="utf-8"))
    tags = [one.tag.rpartition("}")[2] for one in svg.iter()]
    assert tags.count("circle") == 2 * (1 + 3), "an evaluation and three steps of each run"
    dashed = [one for one in svg.iter() if one.get("stroke-dasharray")]
    assert len(dashed) == 4, "the rollback of one run, in each panel"
    # Steps 1, 2, 3 of success .1, .2, .3: the trailing means are .1, .15, .2, so the middle point is halfway up.
    middle = [one for one in svg.iter() if one.tag.endswith("circle")][2:5]
    heights = [float(one.get("cy")) for one in middle]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.11)
