"""The encyclopedia: worlds of their own, questions that need every look-up, an expert as lazy as asked for."""

import asyncio
import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from turnwise.envs.check import check_env
from turnwise.envs.encyclopedia.env import MOST_PEOPLE, Encyclopedia
from turnwise.envs.encyclopedia.questions import ASKS, NOUNS, draw_chain
from turnwise.envs.encyclopedia.world import FACTS, KINDS, make_world
from turnwise.errors import EnvError
from turnwise.types import Message, Task, ToolCall


def play_expert(env, task, episode_seed):
    """What the expert searched for, what it read, and what its answer earned."""
    live = env.spawn()
    asyncio.run(live.reset(task, episode_seed))
    queries, read = [], []
    while True:
        message = live.expert()
        queries += [call.arguments for call in message.tool_calls]
        step = asyncio.run(live.step(message))
        read += [reply.content for reply in step.messages]
        if step.done:
            return queries, read, step.rewards["exact_match"]


async def search(env, task, query):
    live = env.spawn()
    await live.reset(task, 0)
    return (await live.step(call_search(query))).messages[0].content


def call_search(query):
    call = ToolCall(id="c", name="search", arguments=json.dumps({"query": query}))
    return Message(role="assistant", content="", tool_calls=(call,))


@pytest.mark.parametrize("hops", [[1], [2], [1, 2, 3]])
def test_it_keeps_the_contract_of_an_environment(hops):
    assert asyncio.run(check_env(Encyclopedia(hops=hops))) == []


def test_a_world_is_its_seed():
    make_world.cache_clear()
    one = make_world(1)
    make_world.cache_clear()
    assert make_world(1) == one
    other = make_world(2)
    assert one.facts != other.facts
    shared = set(one.entities["person"]) & set(other.entities["person"])
    assert len(shared) < 4, "names are made anew for every world"


@pytest.mark.parametrize("size", [6, 24, MOST_PEOPLE])
def test_a_world_has_one_object_per_subject_and_relation_of_the_right_kind(size):
    world = make_world(3, size)
    sizes = {kind: len(set(names)) for kind, names in world.entities.items()}
    assert [sizes[kind] for kind in ("person", "city", "company", "work")] == [size, size // 2, size // 2, size // 2]
    assert sum(sizes.values()) == len({name for names in world.entities.values() for name in names})
    wanted = {
        (s, relation) for kind, relations in KINDS.items() for s in world.entities[kind] for relation in relations
    }
    assert set(world.facts) == wanted
    for (subject, relation), found in world.facts.items():
        target = next(relations[relation] for relations in KINDS.values() if relation in relations)
        assert found in world.entities[target]
        assert found != subject


def test_a_passage_states_every_fact_of_its_subject_and_no_other():
    world = make_world(4)
    by_title = {passage.title: passage.text for passage in world.passages}
    assert len(world.passages) == len(by_title)
    assert set(by_title) == {subject for subject, _ in world.facts}
    for (subject, relation), found in world.facts.items():
        assert states(by_title[subject], relation, subject, found)
    for title, text in by_title.items():
        assert text.count(".") == sum(subject == title for subject, _ in world.facts), (
            "a sentence for each, and no more"
        )


def states(text, relation, subject, found):
    """Whether one of the sentences for this fact stands in the text."""
    return any(form.format(s=subject, o=found) in text for form in FACTS[relation])


def test_tasks_are_functions_of_their_place_and_share_no_world_between_splits():
    env = Encyclopedia(questions_per_world=3)
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (256 * 3, 32 * 3)
    assert train[5] == Encyclopedia(questions_per_world=3).tasks("train")[5]
    assert train[2:9][1] == train[3]
    seeds = [{task.seed for task in tasks} for tasks in (train, test)]
    assert [len(each) for each in seeds] == [256, 32]
    assert not seeds[0] & seeds[1]
    assert len({train[place].seed for place in range(100)}) == 100, "neighbours are of different worlds"
    with pytest.raises(IndexError):
        train[256 * 3]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_following_the_facts_leads_to_the_answer_and_the_question_names_its_subject_alone(hops):
    env = Encyclopedia(hops=[hops])
    for place in range(200):
        task = env.task("train", place)
        world, data = make_world(task.seed), task.data
        assert len(data["chain"]) == hops
        met, here = [], data["subject"]
        for relation in data["chain"]:
            here = world.facts[here, relation]
            met.append(here)
        assert (data["met"], data["answers"]) == (met, [met[-1]])
        assert len({data["subject"], *met}) == hops + 1, "no chain comes back to where it was"
        named = {name for names in world.entities.values() for name in names if name in data["question"]}
        assert named == {data["subject"]}


def test_every_chain_of_kinds_can_be_asked_in_words():
    relations = {kind: tuple(KINDS.get(kind, ())) for kind in make_world(0).entities}
    rng = random.Random(0)
    drawn = [draw_chain(rng, 1) for _ in range(2000)]
    assert set(drawn) == {(kind, (one,)) for kind, listed in relations.items() for one in listed}
    two = {(kind, (one, two)) for kind in KINDS for one, target in KINDS[kind].items() for two in relations[target]}
    assert {draw_chain(rng, 2) for _ in range(4000)} == two
    assert ("work", ("author", "birthplace")) in two
    # Each of the four kinds is led to a quarter of the time: 500 of 2,000, give or take five deviations of 19.4.
    led_to = Counter(KINDS[kind][chain[0]] for kind, chain in drawn)
    assert len(led_to) == 4
    assert all(abs(count - 500) < 97 for count in led_to.values())
    assert set(NOUNS) == set(ASKS) == set(FACTS) == {one for listed in relations.values() for one in listed}


async def measure_searches(env, tasks):
    """How many look-ups find their fact, and how many questions, searched for as they are, show the last one."""
    counts = Counter()
    for task in tasks:
        entities = [task.data["subject"], *task.data["met"]]
        for relation, (subject, target) in zip(task.data["chain"], pairwise(entities), strict=True):
            shown = await search(env, task, f"{relation} of {subject}")
            counts["looked up"] += 1
            counts["found"] += states(shown, relation, subject, target)
        shown = await search(env, task, task.data["question"])
        counts["given away"] += states(shown, task.data["chain"][-1], *entities[-2:])
        counts["named"] += entities[-1] in shown
    return counts


def test_a_look_up_of_each_hop_finds_the_fact_and_the_question_alone_seldom_does():
    env = Encyclopedia(hops=[2], passages=2)
    counts = asyncio.run(measure_searches(env, env.tasks("test")[:200]))
    assert counts["looked up"] == 400
    assert counts["found"] / 400 >= 0.97
    assert counts["given away"] / 200 <= 0.1
    assert counts["named"] / 200 <= 0.2


def test_a_diligent_expert_always_succeeds_and_reads_every_fact():
    env = Encyclopedia(hops=[1, 2, 3], lazy=0.0)
    for place in range(60):
        task = env.task("train", place)
        queries, read, reward = play_expert(env, task, episode_seed=place)
        assert reward == 1.0
        known = [task.data["subject"], *task.data["met"][:-1]]
        wanted = [f"{relation} of {name}" for relation, name in zip(task.data["chain"], known, strict=True)]
        assert [json.loads(query) for query in queries] == [{"query": query} for query in wanted]
        assert all(name in text for name, text in zip(task.data["met"], read, strict=True))


def test_a_lazy_expert_looks_once_and_never_succeeds():
    env = Encyclopedia(hops=[2, 3], lazy=1.0)
    for place in range(60):
        queries, _, reward = play_expert(env, env.task("train", place), episode_seed=place)
        assert (len(queries), reward) == (1, 0.0)


def test_the_share_of_lazy_episodes_is_the_one_asked_for():
    env = Encyclopedia(hops=[2], lazy=0.7)
    task = env.task("train", 0)
    lazy = [len(play_expert(env, task, episode_seed)[0]) == 1 for episode_seed in range(400)]
    # The standard deviation of the share is √(.7 × .3 / 400) = .023.
    assert abs(sum(lazy) / 400 - 0.7) < 4 * 0.023


def test_a_search_for_nothing_says_so_and_the_last_turn_must_be_the_answer():
    env = Encyclopedia(max_turns=3)
    live = env.spawn()
    asyncio.run(live.reset(env.task("train", 0), 0))
    steps = [asyncio.run(live.step(call_search("xyzzy"))) for _ in range(3)]
    assert [step.messages[0].content for step in steps] == ["Nothing found."] * 3
    assert [step.done for step in steps] == [False, False, True]
    assert steps[-1].rewards == {"exact_match": 0.0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hops": []}, r"hops is \[\]"),
        ({"hops": [0, 2]}, r"hops is \[0, 2\]"),
        ({"hops": [2.5]}, r"hops is \[2.5\]"),
        ({"hops": [7], "max_turns": 9}, r"hops is \[7\]"),
        ({"hops": [2, 4]}, "max_turns is 4; 4 hops take 5 turns"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"lazy": 1.2}, "lazy is 1.2"),
        ({"lazy": float("nan")}, "lazy is nan"),
        ({"people": 5}, "people is 5"),
        ({"people": 481}, "people is 481"),
        ({"passages": 0}, "passages is 0"),
        ({"questions_per_world": 0}, "questions_per_world is 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        Encyclopedia(**arguments)


def test_a_split_that_is_not_there_names_those_that_are():
    with pytest.raises(EnvError, match=r"^there is no split 'dev'; the splits are: train, test$"):
        Encyclopedia().tasks("dev")


def test_a_task_from_elsewhere_is_refused():
    with pytest.raises(EnvError, match=r"^task 'mine' is not of the encyclopedia: 'subject'; take tasks from"):
        asyncio.run(Encyclopedia().spawn().reset(Task(id="mine", data={"question": "Who?"}), 0))
