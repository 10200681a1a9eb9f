"""One episode: ids as they were fed and sampled, and who ended it, whatever happened."""

import asyncio
import re

import pytest

from byte_render import TASK, ByteRender, Scripted, Watched, ids, play, says
from rollout_proofs import prove_a_rewrite_pays_nothing_again, prove_the_clock_keeps_the_last_reward
from turnwise.agents import PolicyAgent
from turnwise.engines.base import Sampling
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError, RewardError
from turnwise.models.small import SmallSettings, train_tokenizer
from turnwise.render import make_render
from turnwise.rewards import exact_match_reward
from turnwise.rollout import Decoding, run_episode
from turnwise.seeds import derive_seed
from turnwise.tools import tool
from turnwise.types import Finish, Message, Step, StopReason


async def hang(episode):
    await asyncio.sleep(60)


def test_an_episode_token_by_token():
    env = Scripted(says("no", rewards={"try": 0.5}), Step(done=True, rewards={"win": 1.0}, metrics={"success": 1.0}))
    engine = Watched("ab", "c")
    asyncio.run(engine.load({}, 4))
    episode = play(engine, env)
    first, second = episode.turns
    assert (first.context_ids, first.action_ids) == (ids("<says>hi<asks>"), ids("ab<end>"))
    assert (second.context_ids, second.action_ids) == (ids("<says>no<asks>"), ids("c<end>"))
    assert (first.opens_row, second.opens_row) == (True, False)
    assert (first.rewards, second.rewards) == ({"try": 0.5}, {"win": 1.0})
    assert [turn.version for turn in episode.turns] == [4, 4]
    assert (episode.stop, episode.success, episode.episode_seed, episode.failure) == (StopReason.DONE, True, 7, "")
    assert env.heard == [("t", 0, "ab"), ("t", 1, "c")]
    assert (env.closed, engine.ended) == (["t"], ["s"])


def test_each_turn_has_the_time_it_took_to_sample_and_to_be_answered():
    async def slowly(episode):
        await asyncio.sleep(0.2)
        return says("no")

    class Slow(Watched):
        async def generate(self, session, prompt_ids, sampling):
            await asyncio.sleep(0.1 if len(self.asked) else 0.0)
            return await super().generate(session, prompt_ids, sampling)

    first, second = play(Slow("ab", "c"), Scripted(slowly, Step(done=True, rewards={"win": 1.0}))).turns
    assert first.env_seconds >= 0.19 > second.env_seconds
    assert second.seconds >= 0.09 > first.seconds


def test_the_row_is_what_was_fed_and_sampled_id_by_id():
    engine = Watched("ab", "longer", "c")
    episode = play(engine, Scripted(says("x"), says("yz"), Step(done=True)), turn_tokens=4)
    [row] = episode.rows()
    _, last_prompt, _ = engine.asked[-1]
    assert tuple(row.ids) == (*last_prompt, *episode.turns[-1].action_ids)
    # The second turn was cut off at four tokens: its end was not sampled, so it is forced, and context.
    assert tuple(row.ids) == ids("<says>hi<asks>ab<end><says>x<asks>long<end><says>yz<asks>c<end>")
    drawn = "".join("a" if action else "." for action in row.action_mask)
    assert drawn == "....aaa...aaaa.....aa"


def test_each_turn_is_asked_for_the_whole_conversation_with_a_seed_of_its_own():
    decoding = Decoding(temperature=0.5, top_p=0.9, top_k=3)
    engine = Watched("ab", "c")
    env = Scripted(says("x"), Step(done=True))
    play(engine, env, decoding=decoding, turn_tokens=9)
    prompts = [prompt for _, prompt, _ in engine.asked]
    assert prompts == [ids("<says>hi<asks>"), ids("<says>hi<asks>ab<end><says>x<asks>")]
    wanted = {"max_tokens": 9, "stop_ids": (256,), "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    seeds = [derive_seed(7, "turn", 0), derive_seed(7, "turn", 1)]
    assert [sampling for _, _, sampling in engine.asked] == [Sampling(**wanted, seed=seed) for seed in seeds]
    assert seeds[0] != seeds[1]


def test_a_rewrite_opens_a_new_row_and_replaces_the_conversation():
    fresh = (Message(role="user", content="sum"),)
    env = Scripted(says("x", rewards={"r": 1.0}), Step(rewrites=fresh), says("y"), Step(done=True, rewards={"r": 2.0}))
    engine = Watched("a", "b", "c", "d")
    episode = play(engine, env)
    assert [tuple(row.ids) for row in episode.rows()] == [
        ids("<says>hi<asks>a<end><says>x<asks>b<end>"),
        ids("<says>sum<asks>c<end><says>y<asks>d<end>"),
    ]
    assert [turn.opens_row for turn in episode.turns] == [True, False, True, False]
    assert [prompt for _, prompt, _ in engine.asked][2:] == [
        ids("<says>sum<asks>"),
        ids("<says>sum<asks>c<end><says>y<asks>"),
    ]
    assert [tuple(row.rewards[row.rewards != 0]) for row in episode.rows()] == [(1.0,), (2.0,)]


def test_max_turns():
    episode = play(Watched("a"), Scripted(says("x", rewards={"r": 0.5}, metrics={"depth": 3.0})), max_turns=3)
    assert (episode.stop, len(episode.turns)) == (StopReason.MAX_TURNS, 3)
    assert (episode.reward, episode.metrics) == (1.5, {"depth": 3.0})


def test_an_environment_that_is_done_on_the_last_turn_is_done():
    episode = play(Watched("a"), Scripted(says("x"), Step(done=True)), max_turns=2)
    assert episode.stop is StopReason.DONE


@pytest.mark.parametrize(
    ("engine_limit", "asked", "turns"),
    [
        (4, None, 0),  # <says>hi<asks> fills it
        (5, None, 1),  # room for one token, and none after it
        (9, None, 1),  # 4 + ab<end> = 7, and <says>x<asks> makes 10
        (10, None, 1),
        (11, None, 2),
        (99, 11, 2),
        (11, 99, 2),
    ],
)
def test_context_full(engine_limit, asked, turns):
    engine = Watched("ab", context_limit=engine_limit)
    episode = play(engine, Scripted(says("x")), context_tokens=asked, max_turns=2)
    full = turns < 2
    assert (episode.stop, len(episode.turns)) == (StopReason.CONTEXT_FULL if full else StopReason.MAX_TURNS, turns)
    limit = min(engine_limit, asked or engine_limit)
    assert all(len(prompt) + sampling.max_tokens <= limit for _, prompt, sampling in engine.asked)


def test_what_a_full_context_leaves_of_a_turn_is_kept_as_cut_off():
    episode = play(Watched("abcdef", context_limit=8), Scripted(says("x")))
    [turn] = episode.turns
    assert (turn.action_ids, turn.finish, episode.stop) == (ids("abcd"), Finish.LENGTH, StopReason.CONTEXT_FULL)


def test_token_budget():
    engine = Watched("abc", "defg")
    episode = play(engine, Scripted(says("x", rewards={"r": 1.0})), episode_tokens=6)
    assert episode.stop is StopReason.TOKEN_BUDGET
    assert [turn.action_ids for turn in episode.turns] == [ids("abc<end>"), ids("de")]
    assert [turn.finish for turn in episode.turns] == [Finish.STOP, Finish.LENGTH]
    assert [sampling.max_tokens for _, _, sampling in engine.asked] == [6, 2]
    assert episode.reward == 2.0


def test_a_budget_spent_to_the_last_token_by_the_winning_move_is_a_win():
    episode = play(Watched("abc"), Scripted(Step(done=True)), episode_tokens=4)
    assert (episode.stop, episode.action_tokens) == (StopReason.DONE, 4)


def test_the_cap_of_a_turn_never_cuts_the_episode():
    engine = Watched("abcdefgh")
    episode = play(engine, Scripted(says("x")), turn_tokens=3, max_turns=4)
    assert [turn.action_ids for turn in episode.turns] == [ids("abc")] * 4
    assert {turn.finish for turn in episode.turns} == {Finish.LENGTH}
    assert (episode.stop, episode.action_tokens) == (StopReason.MAX_TURNS, 12)
    [row] = episode.rows()
    assert tuple(row.ids) == ids("<says>hi<asks>" + "abc<end><says>x<asks>" * 4), "and what it would have read next"


def test_a_step_that_takes_too_long_times_out_and_keeps_its_turn():
    env = Scripted(says("x", rewards={"r": 1.0}), hang)
    engine = Watched("a", "b")
    episode = play(engine, env, seconds=0.05)
    assert (episode.stop, episode.failure) == (StopReason.TIMEOUT, "")
    assert [turn.action_ids for turn in episode.turns] == [ids("a<end>"), ids("b<end>")]
    assert [turn.rewards for turn in episode.turns] == [{"r": 1.0}, {}]
    assert episode.tail_ids == (), "the last move was never answered"
    assert (env.closed, engine.ended) == (["t"], ["s"])
    assert 0.05 <= episode.seconds < 30


def test_an_engine_that_takes_too_long_times_out_and_keeps_the_turns_before():
    class Slow(Watched):
        async def generate(self, session, prompt_ids, sampling):
            if len(self.asked) == 1:
                await asyncio.sleep(60)
            return await super().generate(session, prompt_ids, sampling)

    episode = play(Slow("a"), Scripted(says("x", rewards={"r": 1.0})), seconds=0.05)
    assert (episode.stop, len(episode.turns), episode.reward) == (StopReason.TIMEOUT, 1, 1.0)
    assert episode.tail_ids == ids("<says>x<asks>")


def test_a_reset_that_takes_too_long_times_out():
    episode = play(Watched("a"), Scripted(Step(done=True), opening=hang), seconds=0.05)
    assert (episode.stop, episode.turns) == (StopReason.TIMEOUT, ())


def test_a_timeout_of_the_engines_own_is_not_a_limit_of_ours():
    class Broken(Watched):
        async def generate(self, session, prompt_ids, sampling):
            raise TimeoutError("no answer from the server")

    with pytest.raises(TimeoutError, match="no answer from the server"):
        play(Broken("a"), Scripted(Step(done=True)))


def test_an_engine_that_cancels_a_turn_cancels_its_episode_and_keeps_nobody_waiting():
    class Closed(Watched):
        async def generate(self, session, prompt_ids, sampling):
            raise asyncio.CancelledError

    who = PolicyAgent(engine=Closed("a"), render=ByteRender())
    episode = run_episode(who, Scripted(Step(done=True)), TASK, episode_seed=0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(episode, 10))


@pytest.mark.parametrize(
    ("limits", "stop", "tail"),
    [
        ({"max_turns": 2}, StopReason.MAX_TURNS, "<says>x<asks>"),
        ({"episode_tokens": 6}, StopReason.TOKEN_BUDGET, "<says>x<asks>"),
        ({"episode_tokens": 5}, StopReason.TOKEN_BUDGET, "<end><says>x<asks>"),  # the second turn was cut off too
        ({"context_tokens": 16}, StopReason.CONTEXT_FULL, "<says>x<asks>"),  # fits, and leaves no room to answer
        ({"context_tokens": 15}, StopReason.CONTEXT_FULL, ""),
        ({"context_tokens": 12}, StopReason.CONTEXT_FULL, ""),
    ],
)
def test_what_the_agent_would_have_read_next_is_kept_where_it_fits(limits, stop, tail):
    episode = play(Watched("ab"), Scripted(says("x")), **limits)
    assert (episode.stop, len(episode.turns), episode.tail_ids) == (stop, 2, ids(tail))
    [row] = episode.rows()
    assert tuple(row.ids[row.tail_mask]) == ids(tail)


def test_a_tail_that_a_rewrite_would_have_opened_a_row_for_is_left_empty():
    fresh = (Message(role="user", content="sum"),)
    episode = play(Watched("a"), Scripted(says("x"), Step(rewrites=fresh)), max_turns=2)
    assert (episode.stop, episode.tail_ids) == (StopReason.MAX_TURNS, ())


def test_an_environments_own_clock_cuts_an_episode_off_and_does_not_end_the_task():
    late = Step(messages=(Message(role="user", content="x"),), done=True, truncated=True)
    episode = play(Watched("a"), Scripted(says("x"), late))
    assert (episode.stop, len(episode.turns), episode.tail_ids) == (StopReason.TIME_UP, 2, ids("<says>x<asks>"))
    assert episode.stop.truncated


def test_the_move_that_an_environments_clock_cut_off_is_paid_for():
    prove_the_clock_keeps_the_last_reward()


def test_a_rewrite_pays_nothing_again():
    prove_a_rewrite_pays_nothing_again()


def test_an_episode_that_is_over_has_no_tail():
    assert play(Watched("a"), Scripted(says("x"), Step(done=True))).tail_ids == ()
    failed = play(Watched("a"), Scripted(says("x"), keys=("s0", RuntimeError("no state"))))
    assert (failed.stop, len(failed.turns), failed.tail_ids) == (StopReason.ENV_FAILED, 1, ())


def test_an_environment_that_breaks_in_reset():
    env = Scripted(Step(done=True), opening=ConnectionError("no simulator"))
    episode = play(Watched("a"), env)
    assert (episode.stop, episode.turns) == (StopReason.ENV_FAILED, ())
    words = r"task 't': reset: ConnectionError: no simulator \(.*byte_render\.py:\d+ in _act\)"
    assert re.fullmatch(words, episode.failure)
    assert env.closed == ["t"]


@pytest.mark.parametrize("error", [KeyError("gold"), TimeoutError("gold"), OSError("gold"), ValueError("gold")])
def test_an_environment_that_breaks_in_step_keeps_what_was_sampled(error):
    env = Scripted(says("x", rewards={"r": 1.0}), error)
    engine = Watched("a", "b")
    episode = play(engine, env)
    assert episode.stop is StopReason.ENV_FAILED
    assert episode.failure.startswith(f"task 't': step: {type(error).__name__}: {error} (")
    assert [turn.action_ids for turn in episode.turns] == [ids("a<end>"), ids("b<end>")]
    assert [turn.rewards for turn in episode.turns] == [{"r": 1.0}, {}]
    assert (env.closed, engine.ended) == (["t"], ["s"])


def test_an_environment_that_breaks_in_state_key():
    episode = play(Watched("a"), Scripted(says("x"), keys=("s0", RuntimeError("no state"))))
    assert episode.stop is StopReason.ENV_FAILED
    assert episode.failure.startswith("task 't': state_key: RuntimeError: no state (")
    assert len(episode.turns) == 1


def test_state_keys_name_the_state_acted_in():
    episode = play(Watched("a"), Scripted(says("x"), Step(done=True), keys=("start", "after x")))
    assert [turn.state_key for turn in episode.turns] == ["start", "after x"]


def test_an_environment_that_breaks_in_close_is_told_and_loses_nothing():
    env = Scripted(Step(done=True, rewards={"win": 1.0}, metrics={"success": 1.0}), closing=OSError("busy"))
    episode = play(Watched("a"), env)
    assert (episode.stop, episode.reward, episode.success) == (StopReason.DONE, 1.0, True)
    assert episode.failure.startswith("task 't': close: OSError: busy (")


def test_the_first_failure_is_the_one_told():
    episode = play(Watched("a"), Scripted(KeyError("gold"), closing=OSError("busy")))
    assert episode.stop is StopReason.ENV_FAILED
    assert episode.failure.startswith("task 't': step: KeyError: 'gold' (")


@pytest.mark.parametrize("place", ["opening", "step"])
def test_a_mistake_that_one_line_explains_costs_its_episode_like_any_other(place):
    mistake = RewardError("reward 'bleu' is nan: return a finite number")
    env = Scripted(mistake if place == "step" else Step(done=True), opening=mistake if place == "opening" else "hi")
    engine = Watched("a")
    episode = play(engine, env)
    where = "reset" if place == "opening" else "step"
    assert episode.stop is StopReason.ENV_FAILED
    assert episode.failure.startswith(f"task 't': {where}: RewardError: {mistake} (")
    assert (env.closed, engine.ended) == (["t"], ["s"]), "an episode is cleaned up after whatever ended it"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", None])
def test_a_reward_that_is_no_number_costs_its_episode(value):
    async def pay(episode):
        return Step(done=True, rewards={"bleu": value})

    episode = play(Watched("a"), Scripted(pay))
    assert episode.stop is StopReason.ENV_FAILED
    assert re.fullmatch(r"task 't': step: .*(bleu|NoneType).* \(.*test_episode\.py:\d+ in pay\)", episode.failure)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "step returned None, not a Step; return Step"),
        ({"done": True}, "step returned a dict, not a Step"),
        (Step(done=True, metrics={"success": "yes"}), "metric 'success' is 'yes'; give a finite number"),
        (Step(done=True, metrics={"success": float("nan")}), "metric 'success' is nan"),
        (Step(done=True, metrics={"success": None}), "metric 'success' is None"),
        (Step(messages=("hello",)), "step gave a str among its messages; write Message"),
        (Step(messages=(Message(role="user", content=None),)), "step gave a message whose content is None; write text"),
        (Step(messages=(Message(role="user", content="\ud83d"),)), "which no tokenizer can read"),
        (Step(rewrites=("hello",)), "step (rewrites) gave a str"),
    ],
)
def test_what_is_no_step_costs_its_episode(returned, words):
    async def answer(episode):
        return returned

    episode = play(Watched("a"), Scripted(answer))
    assert episode.stop is StopReason.ENV_FAILED
    assert episode.failure.startswith("task 't': step: EnvError: ")
    assert words in episode.failure


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (None, "reset returned None, not messages; return [Message(role='user', content=...)]"),
        ("hello", "reset returned a str, not messages"),
        (Message(role="user", content="hello"), "reset returned a Message, not messages"),
        ([], "reset returned no messages"),
        (["hello"], "reset gave a str among its messages"),
    ],
)
def test_an_opening_that_is_no_messages_costs_its_episode(opening, words):
    class Odd(Scripted):
        async def reset(self, task, episode_seed):
            await super().reset(task, episode_seed)
            return opening

    episode = play(Watched("a"), Odd(Step(done=True)))
    assert (episode.stop, episode.turns) == (StopReason.ENV_FAILED, ())
    assert words in episode.failure


class _OddError(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("bye"), _OddError("odd"), asyncio.CancelledError()])
@pytest.mark.parametrize("place", ["reset", "step", "state_key", "close"])
def test_no_exit_of_the_environments_code_is_ours(error, place):
    class Exits(Scripted):
        async def reset(self, task, episode_seed):
            opening = await super().reset(task, episode_seed)
            return opening if place != "reset" else self.leave()

        async def step(self, message):
            return Step(done=True) if place != "step" else self.leave()

        def state_key(self):
            return "key" if place != "state_key" else self.leave()

        async def close(self):
            if place == "close":
                self.leave()

        def leave(self):
            raise error

    episode = play(Watched("a"), Exits())
    assert episode.stop is (StopReason.DONE if place == "close" else StopReason.ENV_FAILED)
    assert episode.failure.startswith(f"task 't': {place}: {type(error).__name__}")
    assert re.search(r"test_episode\.py:\d+ in leave", episode.failure)


def test_an_interrupt_by_the_user_passes():
    async def interrupt(episode):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(Watched("a"), Scripted(interrupt))


def test_a_renderer_that_breaks_is_our_bug_and_not_the_environments():
    class Broken(ByteRender):
        def parse(self, action_ids):
            raise ZeroDivisionError

    who = PolicyAgent(engine=Watched("a"), render=Broken())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_episode(who, Scripted(Step(done=True)), TASK, episode_seed=0, session="s"))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 20}])
def test_training_refuses_a_truncated_distribution(settings):
    with pytest.raises(ConfigError, match=r"^rollout: to train, sample with temperature > 0[^\n]*$"):
        Decoding(**settings).require_trainable("rollout")


def test_training_takes_a_tempered_distribution():
    Decoding(temperature=0.7).require_trainable("rollout")


class Desk(ToolEnv):
    """One look-up, then the answer."""

    def __init__(self):
        super().__init__(tasks=[{"question": "Who?", "answers": ["Ada"]}], rewards=[exact_match_reward], system="Ask.")

    @tool(quick=True)
    def look_up(self, key: str) -> str:
        """Looks a key up.

        Args:
            key: Which one.
        """
        return f"{key} is Ada"


def test_an_episode_in_a_real_chat_template():
    tokenizer = train_tokenizer(["Who is Ada? look_up key"] * 4, SmallSettings(vocabulary=300))
    render = make_render(tokenizer)
    call = '<tool_call>{"name": "look_up", "arguments": {"key": "k"}}</tool_call>'
    replies = {1: call, 2: "<answer>Ada</answer>"}
    asked = []

    def reply(session, prompt):
        asked.append(tuple(prompt))
        # The second answer comes as single letters and not as the tokenizer would have cut it.
        text = replies[len(asked)]
        letters = [i for letter in text for i in tokenizer.encode(letter)]
        return text if len(asked) == 1 else (*letters, tokenizer.eos_token_id)

    who = PolicyAgent(engine=ScriptedEngine(reply, render.encode_action), render=render)
    env = Desk()
    episode = asyncio.run(run_episode(who, env.spawn(), env.tasks("train")[0], episode_seed=0, session="s"))
    [row] = episode.rows()
    assert episode.stop is StopReason.DONE
    assert tuple(row.ids) == (*asked[-1], *episode.turns[-1].action_ids)
    assert render.decode(row.ids) == (
        "<|im_start|>system\nAsk.\nlook_up(key): Looks a key up<|im_end|><|im_start|>user\nWho?<|im_end|>"
        f"<|im_start|>assistant\n{call}<|im_end|>"
        "<|im_start|>tool\n<tool_response>k is Ada</tool_response><|im_end|>"
        "<|im_start|>assistant\n<answer>Ada</answer><|im_end|>"
    )
    assert render.decode(row.ids[row.action_mask]) == f"{call}<|im_end|><answer>Ada</answer><|im_end|>"
    assert len(episode.turns[-1].action_ids) == len("<answer>Ada</answer>") + 1, "sampled ids stay as they were sampled"
    assert episode.rewards == {"exact_match": 1.0}
