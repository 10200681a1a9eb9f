"""The local engine as a service: loads, cancellations, failures and event loops."""

import asyncio

import pytest
import torch

from tiny_models import greedy_by_full_forwards, logprobs_by_full_forward, make_model
from turnwise.engines import Completion, LocalEngineSettings, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.errors import ModelError

PROMPT = [5, 6, 7, 8, 9]


def engine_of(model, *, slots: int = 2) -> LocalEngine:
    return LocalEngine(model, settings=LocalEngineSettings(slots=slots))


def turn(count: int = 6, **settings) -> Sampling:
    return Sampling(**{"max_tokens": count, "stop_ids": (), "temperature": 0.0} | settings)


def ask(engine: LocalEngine, prompt: list[int] = PROMPT, *, session: str = "s", count: int = 6) -> Completion:
    return asyncio.run(engine.generate(session, prompt, turn(count)))


def assert_right(model, completion: Completion, prompt: list[int] = PROMPT) -> None:
    ids, logprobs = greedy_by_full_forwards(model, prompt, len(completion.ids))
    assert list(completion.ids) == ids
    assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)


def perturb(model, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=source).to(weight.device))


def test_weights_changed_in_place_are_not_served_stale():
    model = make_model()
    engine = engine_of(model)
    before = ask(engine)
    perturb(model, 1)
    asyncio.run(engine.load(dict(model.named_parameters()), version=7))
    after = ask(engine)
    assert after.logprobs != before.logprobs
    assert_right(model, after)
    assert (before.version, after.version) == (0, 7)


def test_foreign_weights_are_copied_into_the_learners_tensors():
    model, other = make_model(), make_model()
    perturb(other, 2)
    engine = engine_of(model)
    ask(engine)
    addresses = [weight.data_ptr() for weight in model.parameters()]
    asyncio.run(engine.load(other.state_dict(), version=1))
    assert_right(other, ask(engine))
    assert [weight.data_ptr() for weight in model.parameters()] == addresses


def test_a_tied_weight_need_be_given_only_once():
    model = make_model("gemma")
    weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    asyncio.run(engine_of(model).load(weights, version=1))


def test_weights_that_do_not_fit_are_refused_and_change_nothing():
    model = make_model()
    engine = engine_of(model)
    weights = {name: weight.clone().zero_() for name, weight in model.state_dict().items()}
    wrong = [
        (weights | {"model.nose.weight": torch.zeros(1)}, "no weight 'model.nose.weight'"),
        ({"lm_head.weight": weights["lm_head.weight"]}, "no value given for the weight"),
        (weights | {"model.norm.weight": torch.zeros(3)}, r"'model.norm.weight' has shape \(3,\), not \(32,\)"),
    ]
    for given, message in wrong:
        with pytest.raises(ModelError, match=message):
            asyncio.run(engine.load(given, version=9))
    completion = ask(engine)
    assert completion.version == 0
    assert_right(make_model(), completion)


def test_a_turn_under_way_goes_on_under_the_new_weights():
    old, new = make_model(), make_model()
    perturb(new, 3)
    engine = engine_of(model := make_model())

    async def load_midway() -> Completion:
        task = asyncio.create_task(engine.generate("s", PROMPT, turn(9)))
        while engine.stats.decode_steps < 3:
            await asyncio.sleep(0)
        await engine.load(new.state_dict(), version=1)
        return await task

    completion = asyncio.run(load_midway())
    before = logprobs_by_full_forward(old, PROMPT, completion.ids)
    after = logprobs_by_full_forward(new, PROMPT, completion.ids)
    # One token came from the prefill and three from decode steps before the load.
    assert completion.logprobs == pytest.approx([*before[:4], *after[4:]], abs=1e-4)
    assert (len(completion.ids), completion.version) == (9, 0)
    assert_right(model, ask(engine))


def test_weights_that_diverged_are_an_error_and_leave_nothing_behind():
    model = make_model()
    healthy = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = engine_of(model)
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in healthy.items()}
    asyncio.run(engine.load(broken, version=1))
    with pytest.raises(ModelError, match="logits are not finite"):
        ask(engine, PROMPT * 4)
    asyncio.run(engine.load(healthy, version=2))
    assert_right(model, ask(engine))


def test_one_engine_serves_successive_event_loops():
    model = make_model()
    engine = engine_of(model)
    first = ask(engine)
    longer = [*PROMPT, *first.ids, 11]
    assert_right(model, ask(engine, longer), longer)
    assert engine.stats.reused_tokens == len(longer) - 2, "the cache outlives the loop"


def test_nothing_runs_once_all_turns_are_done():
    engine = engine_of(make_model())

    async def count_tasks() -> int:
        await asyncio.gather(*(engine.generate(str(number), PROMPT, turn()) for number in range(5)))
        return len(asyncio.all_tasks())

    assert asyncio.run(count_tasks()) == 1, "only the caller itself"


def test_a_loop_that_dies_during_a_turn_does_not_harm_the_next():
    model = make_model()
    engine = engine_of(model)
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(engine.generate("s", PROMPT, turn(100)))
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert not abandoned.done()
    assert_right(model, ask(engine))
    abandoned.cancel()
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()


def test_cancelling_a_turn_frees_its_slot_and_disturbs_no_other():
    model = make_model()
    engine = engine_of(model, slots=2)

    async def cancel_one() -> tuple[Completion, Completion]:
        doomed = asyncio.create_task(engine.generate("doomed", [1, 2, 3], turn(140)))
        stays = asyncio.create_task(engine.generate("stays", PROMPT, turn(30)))
        waits = asyncio.create_task(engine.generate("waits", PROMPT[:3], turn(5)))
        while engine.stats.decode_steps < 4:
            await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        waited = await waits
        assert not stays.done(), "the freed slot was taken while the other turn went on"
        return await stays, waited

    stayed, waited = asyncio.run(cancel_one())
    assert_right(model, stayed)
    assert_right(model, waited, PROMPT[:3])


def test_a_cancelled_turn_in_the_queue_is_forgotten():
    engine = engine_of(make_model(), slots=1)

    async def cancel_queued() -> None:
        first = asyncio.create_task(engine.generate("first", PROMPT, turn(8)))
        queued = asyncio.create_task(engine.generate("queued", PROMPT, turn(8)))
        await asyncio.sleep(0)
        queued.cancel()
        await first

    asyncio.run(cancel_queued())
    assert engine.stats.decode_tokens == 7


def test_a_timeout_leaves_the_session_usable():
    model = make_model()
    engine = engine_of(model)

    async def time_out() -> Completion:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate("s", PROMPT, turn(150)), timeout=0.01)
        return await engine.generate("s", PROMPT, turn())

    assert_right(model, asyncio.run(time_out()))


def test_a_failure_of_the_model_reaches_everyone_and_is_survived():
    model = make_model()
    engine = engine_of(model, slots=2)
    calls = 0

    def fail_on_third_call(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")

    hook = model.model.embed_tokens.register_forward_pre_hook(fail_on_third_call)

    async def everyone() -> list[BaseException | Completion]:
        turns = (engine.generate(str(number), PROMPT, turn()) for number in range(4))
        return await asyncio.gather(*turns, return_exceptions=True)

    assert [str(failure) for failure in asyncio.run(everyone())] == ["out of memory"] * 4
    hook.remove()
    assert_right(model, ask(engine))


def test_ending_a_session_during_its_turn_fails_that_turn():
    model = make_model()
    engine = engine_of(model)

    async def end_early() -> Completion:
        cut = asyncio.create_task(engine.generate("cut", PROMPT, turn(100)))
        kept = asyncio.create_task(engine.generate("kept", PROMPT, turn(8)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await engine.end("cut")
        with pytest.raises(ModelError, match="'cut' was ended during a turn"):
            await cut
        return await kept

    assert_right(model, asyncio.run(end_early()))


def test_two_turns_of_one_session_take_their_turns():
    model = make_model()
    engine = engine_of(model)

    async def both() -> list[Completion]:
        return await asyncio.gather(engine.generate("s", PROMPT, turn(6)), engine.generate("s", PROMPT[:2], turn(4)))

    first, second = asyncio.run(both())
    assert_right(model, first)
    assert_right(model, second, PROMPT[:2])


def test_requests_are_served_in_the_order_they_came():
    engine = engine_of(make_model(), slots=2)
    served: list[int] = []

    async def request(number: int) -> None:
        await engine.generate(str(number), PROMPT, turn(4))
        served.append(number)

    async def everyone() -> None:
        await asyncio.gather(*(request(number) for number in range(7)))

    asyncio.run(everyone())
    assert served == list(range(7))


def test_of_turns_that_end_together_the_first_are_read_on_before_the_last_are_handed_over():
    model = make_model()
    engine = engine_of(model, slots=8)
    engine._delivered_at_once = 2
    read_when_answered: list[int] = []

    async def converse(number: int) -> tuple[list[int], Completion]:
        prompt = [number, *PROMPT]
        first = await engine.generate(str(number), prompt, turn(3))
        read_when_answered.append(engine.stats.prefill_tokens)
        prompt = [*prompt, *first.ids, 7, 8]
        return prompt, await engine.generate(str(number), prompt, turn(3))

    async def everyone() -> list[tuple[list[int], Completion]]:
        return await asyncio.gather(*(converse(number) for number in range(8)))

    for prompt, second in asyncio.run(everyone()):
        assert_right(model, second, prompt)
    first, more = read_when_answered[0], 3  # what was sampled last, and the two after it
    assert read_when_answered == [first + done * more for done in (0, 0, 0, 0, 4, 4, 6, 6)]


async def end_eight_turns(engine: LocalEngine) -> list[asyncio.Task[Completion]]:
    """Turns that end together, the first of which have been handed over and the last of which have not."""
    engine._delivered_at_once = 1
    turns = [asyncio.create_task(engine.generate(str(number), [number, *PROMPT], turn(3))) for number in range(8)]
    await turns[0]
    return turns


def test_a_turn_that_is_complete_may_still_be_withdrawn():
    model = make_model()
    engine = engine_of(model, slots=8)

    async def everyone() -> list[Completion]:
        turns = await end_eight_turns(engine)
        turns[7].cancel()
        await engine.end("6")
        with pytest.raises(ModelError, match="'6' was ended during a turn"):
            await turns[6]
        return [await turns[0], await turns[1], await engine.generate("7", PROMPT, turn(3))]

    first, second, again = asyncio.run(everyone())
    assert_right(model, first, [0, *PROMPT])
    assert_right(model, second, [1, *PROMPT])
    assert_right(model, again)


def test_turns_that_are_complete_when_weights_come_are_of_the_old_ones():
    model = make_model()
    engine = engine_of(model, slots=8)

    async def everyone() -> list[Completion]:
        turns = await end_eight_turns(engine)
        await engine.load(model.state_dict(), version=1)
        return await asyncio.gather(*turns)

    for number, completion in enumerate(asyncio.run(everyone())):
        assert completion.version == 0
        assert_right(model, completion, [number, *PROMPT])


def test_short_turns_do_not_wait_for_long_ones():
    engine = engine_of(make_model(), slots=2)

    async def steps_until_short_ones_end() -> int:
        long = asyncio.create_task(engine.generate("long", PROMPT, turn(60)))
        for number in range(3):
            await engine.generate(f"short {number}", PROMPT, turn(3))
        steps = engine.stats.decode_steps
        await long
        return steps

    # Each short turn takes a prefill and two steps; handing it over may cost a step more, and two on a GPU, which
    # runs ahead.
    assert asyncio.run(steps_until_short_ones_end()) <= (12 if torch.cuda.is_available() else 9)
