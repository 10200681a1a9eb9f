"""Prefills that are padded to few sizes and replayed, and slots that move without their keys: where their numbers lie,
and that they sample what others do.

On a GPU graphs replay them and kernels read them; here a graph is a step that is called again, over the tensors it was
first called with.
"""

import asyncio
import random
from itertools import chain

import pytest
import torch

from tiny_models import VOCABULARY, greedy_by_full_forwards, make_model
from turnwise.engines import LocalEngineSettings, Sampling
from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.local.runner import ModelRunner, PrefillChunk, PrefillSize

GREEDY = Sampling(max_tokens=8, stop_ids=(), temperature=0)


class Replays:
    """Steps recorded as CUDA graphs are: whatever a later one brings along, the first of its key is run again, and what
    it gives lies where it lay the first time."""

    enabled = True

    def __init__(self):
        self.keys, self.times_cleared, self._recorded = [], 0, {}

    def run(self, key, step):
        self.keys.append(key)
        if key not in self._recorded:
            self._recorded[key] = (step, step())
            return self._recorded[key][1]
        first, tensors = self._recorded[key]
        for tensor, found in zip(tensors, first(), strict=True):
            tensor.copy_(found)
        return tensors

    def clear(self):
        self._recorded.clear()
        self.times_cleared += 1


def read_as_kernels_do(runner):
    """Kernels take the tokens of a chunk from its start to the next one's, and all its slot holds: so does this."""
    plain = runner._forward.prefill

    def prefill(inputs):
        fed = int(inputs.starts[-1])
        tokens = {name: getattr(inputs, name)[:fed] for name in ("ids", "positions", "rows", "chunk", "column")}
        return plain(
            PrefillInputs(
                **tokens, starts=inputs.starts, slots=inputs.slots, width=inputs.width, length=runner._cache.capacity
            )
        )

    runner._forward.prefill = prefill


def runner_of(*, slots=4, replayed=False):
    runner = ModelRunner(make_model(), slots=slots, context_limit=160, autocast=None)
    assert not runner.pads
    runner._graphs = None
    if replayed:
        replay(runner)
    return runner


def replay(runner):
    runner._graphs = Replays()
    runner._cache.reserve(runner._cache.capacity, runner._slots)  # all at once, as on a GPU
    runner._forward._ops.replays_prefills = True
    read_as_kernels_do(runner)
    return runner._graphs


def read_any_row(runner):
    """Kernels read a slot's keys in whichever row they are; without them the rows are gathered, and put back after."""
    forward, plain = runner._forward, runner._forward.decode
    if forward.reads_any_row:
        return
    forward._ops.reads_any_row = True

    def decode(inputs):
        whole, rows = forward.cache, inputs.rows
        forward.cache = gathered = KVCache(rows=len(rows), dtype=whole.dtype)
        gathered.capacity = whole.capacity
        gathered._layers = {
            index: tuple(torch.cat((tensor[rows], tensor[whole.spare :])) for tensor in layer)
            for index, layer in whole._layers.items()
        }
        order = torch.where(rows == whole.spare, len(rows), torch.arange(len(rows), device=rows.device))
        logits = plain(DecodeInputs(ids=inputs.ids, positions=inputs.positions, rows=order, length=inputs.length))
        for index, layer in gathered._layers.items():
            for tensor, moved in zip(whole._layers[index], layer, strict=True):
                tensor[rows] = moved[:-1]
        forward.cache = whole
        return logits

    forward.decode = decode


def keep_slots_in_rows(runner):
    """Slot i in row i, as every forward reads it: swaps then move keys."""
    runner._forward._ops.reads_any_row = False


def begin(runner, *chunks, sampling=GREEDY, drawn=0):
    """Prefills `(slot, start, ids)` and gives the first token of each, and its logprob."""
    every = [PrefillChunk(slot=slot, start=start, ids=ids) for slot, start, ids in chunks]
    settings = {"greedy": sampling.temperature == 0, "truncate": False}
    return runner.prefill(every, [sampling] * len(every), [drawn] * len(every), **settings).wait()


def both(*, count=4):
    """A runner whose prefills are not padded, and one whose are."""
    return runner_of(slots=count), runner_of(slots=count, replayed=True)


def assert_agree(one, other):
    tokens, logprobs = one
    assert other[0] == tokens
    assert other[1] == pytest.approx(logprobs, abs=1e-4)


def decode(runner, count, length):
    return runner.decode(count, length, greedy=True, truncate=False).wait()


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        ((1, 1, 1), (256, 16, 256)),
        ((256, 2, 64), (256, 16, 256)),
        ((257, 4, 65), (384, 16, 256)),
        ((385, 5, 256), (512, 16, 256)),
        ((513, 16, 257), (768, 16, 1024)),
        ((1025, 17, 1000), (1536, 64, 1024)),
        ((4160, 64, 65), (4608, 64, 256)),
        ((8320, 128, 65), (9216, 256, 256)),
        ((4096, 64, 4096), (4096, 64, 4096)),
        ((3000, 65, 100), (3072, 256, 256)),
    ],
)
def test_a_prefill_is_padded_to_one_of_few_sizes(size, rounded):
    tokens, chunks, width = size
    found = PrefillSize(tokens=tokens, chunks=chunks, width=width).rounded_up()
    assert (found.tokens, found.chunks, found.width) == rounded


def test_there_is_room_for_every_prefill_in_its_size():
    few = set()
    for tokens in range(1, 8193, 7):
        for chunks in {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, tokens}:
            found = PrefillSize(tokens=tokens, chunks=min(chunks, tokens), width=-(-tokens // chunks)).rounded_up()
            assert found.tokens >= tokens
            assert found.chunks >= min(chunks, tokens)
            assert found.width >= -(-tokens // chunks)
            assert found.rounded_up() == found
            few.add(found)
    coarse, fine = {256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096}, {*range(4608, 8193, 512)}
    assert {size.tokens for size in few} == coarse | fine
    assert {size.chunks for size in few} == {16, 64, 256, 1024, 4096, 16384}
    assert {size.width for size in few} == {256, 1024, 4096, 16384}


def test_the_size_of_a_prefill():
    chunks = [PrefillChunk(slot=2, start=5, ids=[7, 8, 9]), PrefillChunk(slot=0, start=0, ids=[4])]
    assert PrefillSize.of(chunks) == PrefillSize(tokens=4, chunks=2, width=3)


def test_padding_goes_to_the_spare_row_and_spare_feeds_have_no_tokens():
    """Three tokens for slot 2, which holds five, then two for slot 0; the spare row of three slots is 3."""
    runner = runner_of(slots=3)
    chunks = [PrefillChunk(slot=2, start=5, ids=[7, 8, 9]), PrefillChunk(slot=0, start=0, ids=[4, 6])]
    inputs, slots = runner._make_inputs(chunks, PrefillSize(tokens=8, chunks=4, width=4), static=True)
    assert inputs.ids.tolist() == [7, 8, 9, 4, 6, 0, 0, 0]
    assert inputs.positions.tolist() == [5, 6, 7, 0, 1, 0, 0, 0]
    assert inputs.rows.tolist() == [2, 2, 2, 0, 0, 3, 3, 3]
    assert inputs.chunk[:5].tolist() == [0, 0, 0, 1, 1]
    assert inputs.column[:5].tolist() == [0, 1, 2, 0, 1]
    assert inputs.starts.tolist() == [0, 3, 5, 5, 5]
    assert inputs.slots.tolist() == slots.tolist() == [2, 0, 3, 3]
    assert (inputs.width, inputs.length) == (4, 32)


def test_without_padding_there_are_the_tokens_alone():
    runner = runner_of(slots=3)
    chunks = [PrefillChunk(slot=2, start=5, ids=[7, 8, 9]), PrefillChunk(slot=0, start=0, ids=[4, 6])]
    inputs, slots = runner._make_inputs(chunks, PrefillSize.of(chunks), static=False)
    assert inputs.ids.tolist() == [7, 8, 9, 4, 6]
    assert inputs.positions.tolist() == [5, 6, 7, 0, 1]
    assert inputs.rows.tolist() == [2, 2, 2, 0, 0]
    assert (inputs.chunk.tolist(), inputs.column.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    assert (inputs.starts.tolist(), inputs.slots.tolist(), slots.tolist()) == ([0, 3, 5], [2, 0], [2, 0])
    assert (inputs.width, inputs.length) == (3, 32)


def test_a_size_has_one_desk_and_nothing_of_an_earlier_prefill_stays_on_it():
    runner = runner_of(slots=3)
    size = PrefillSize(tokens=6, chunks=4, width=4)
    three = [PrefillChunk(slot=slot, start=9, ids=[7, 8]) for slot in (0, 1, 2)]
    first, slots = runner._make_inputs(three, size, static=True)
    second, _ = runner._make_inputs([PrefillChunk(slot=1, start=0, ids=[4])], size, static=True)
    assert first.ids.data_ptr() == second.ids.data_ptr()
    assert first.ids.tolist() == [4, 0, 0, 0, 0, 0], "a graph that was recorded with the first reads the second"
    assert first.positions.tolist() == [0] * 6
    assert first.rows.tolist() == [1, 3, 3, 3, 3, 3]
    assert first.starts.tolist() == [0, 1, 1, 1, 1]
    assert first.slots.tolist() == slots.tolist() == [1, 3, 3, 3]
    other, _ = runner._make_inputs(
        [PrefillChunk(slot=1, start=0, ids=[4])], PrefillSize(tokens=7, chunks=4, width=4), static=True
    )
    assert other.ids.data_ptr() != first.ids.data_ptr()


def test_chunks_of_any_slot_and_length_sample_the_same_when_they_are_padded():
    plain, padded = both()
    first = [(2, 0, [5, 6, 7, 8]), (0, 0, [9]), (3, 0, [11, 12, 13, 14, 15, 16, 17])]
    expected = begin(plain, *first)
    assert_agree(begin(padded, *first), expected)
    ids, logprobs = greedy_by_full_forwards(make_model(), [11, 12, 13, 14, 15, 16, 17], 1)
    assert (expected[0][2], expected[1][2]) == (ids[0], pytest.approx(logprobs[0], abs=1e-4))
    more = [(3, 7, [1, 2]), (0, 1, [3, 4, 5]), (2, 4, [6])]
    assert_agree(begin(padded, *more), begin(plain, *more))
    assert_agree(decode(padded, 4, 10), decode(plain, 4, 10))


def test_prefills_of_one_size_follow_one_another():
    """Three times three chunks, each time others, in other slots and further on: the same step runs again."""
    plain, padded = both()
    source = random.Random(1)
    held = [0, 0, 0, 0]
    for _ in range(3):
        chunks = []
        for slot in source.sample(range(4), 3):
            ids = [source.randrange(VOCABULARY) for _ in range(source.randrange(1, 9))]
            chunks.append((slot, held[slot], ids))
            held[slot] += len(ids)
        assert_agree(begin(padded, *chunks), begin(plain, *chunks))
    size = PrefillSize(tokens=256, chunks=16, width=256)
    assert padded._graphs.keys == [size, (size, True, False)] * 3
    assert padded._graphs.times_cleared == 0


@pytest.mark.parametrize(
    ("count", "length", "size"),
    [
        (1, 1, (8, 128)),
        (8, 128, (8, 128)),
        (9, 129, (16, 160)),
        (64, 70, (64, 128)),
        (65, 9, (96, 128)),
        (97, 9, (100, 128)),
    ],
)
def test_a_decode_step_is_padded_to_one_of_few_sizes(count, length, size):
    """Of 100 slots, with 160 keys at the most."""
    runner = runner_of(slots=100, replayed=True)
    begin(runner, (0, 0, [5] * 140))
    decode(runner, count, length)
    assert runner._graphs.keys[-1] == (*size, True, False)


def test_what_a_replay_computes_beside_its_tokens_is_counted():
    plain, padded = both()
    few = [PrefillChunk(slot=0, start=0, ids=[5] * 200), PrefillChunk(slot=1, start=0, ids=[6] * 60)]
    many = [PrefillChunk(slot=0, start=0, ids=[5] * 16385)]
    assert (plain.count_padding(few), padded.count_padding(few)) == (0, 384 - 260)
    assert padded.count_padding(many) == 0, "too many to be replayed"


def test_slots_that_are_live_are_not_touched_by_a_padded_prefill():
    """Lane 1 has three tokens sampled before anyone else comes, and two after: the five of a full forward."""
    runner = runner_of(replayed=True)
    prompt = [5, 6, 7, 8]
    (first,), _ = begin(runner, (1, 0, prompt))
    said = [first]
    for length in (5, 6):
        said.append(decode(runner, 2, length)[0][1])
    state = (runner._ids, runner._positions, runner._active, runner._drawn, runner._temperature, runner._uniforms)
    before = [tensor[1].clone() for tensor in state]
    keys = [runner._cache.layer(layer, None)[0][1].clone() for layer in (0, 1)]
    begin(runner, (3, 0, [9, 9, 9]), (0, 0, [10]), sampling=Sampling(max_tokens=8, stop_ids=(), seed=4))
    assert all(tensor[1].equal(was) for tensor, was in zip(state, before, strict=True))
    assert all(runner._cache.layer(layer, None)[0][1].equal(was) for layer, was in enumerate(keys))
    for length in (7, 8):
        said.append(decode(runner, 4, length)[0][1])
    assert said == greedy_by_full_forwards(make_model(), prompt, 5)[0]


def test_a_slot_goes_on_where_its_chunk_ended():
    plain, padded = both(count=3)
    for runner in (plain, padded):
        begin(runner, (2, 0, [5, 6, 7]), (0, 0, [9]), drawn=2)
        assert runner._positions[:3].tolist() == [1, 0, 3]
        assert runner._drawn[:3].tolist() == [3, 0, 3]
        assert runner._active[:3].tolist() == [True, False, True]


def test_where_any_row_is_read_a_swap_moves_no_keys():
    """Slots 2 and 1 of four swap, and 3 and 0: what they sample moves, and the rows of the cache stay."""
    plain, moving = runner_of(), runner_of(replayed=True)
    keep_slots_in_rows(plain)
    read_any_row(moving)
    for runner in (plain, moving):
        begin(runner, (0, 0, [5, 6, 7, 8]), (1, 0, [9, 10]), (2, 0, [11, 12, 13]))
    keys = [moving._cache.layer(layer, None)[0].clone() for layer in (0, 1)]
    for runner in (plain, moving):
        runner.swap([2, 3], [1, 0], 4)
    assert all(moving._cache.layer(layer, None)[0].equal(was) for layer, was in enumerate(keys))
    assert (moving._rows.tolist(), moving._row.tolist()) == ([3, 2, 1, 0, 4], [3, 2, 1, 0, 4])
    assert (plain._rows.tolist(), plain._row.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    live = [1, 2, 3]
    for length in (5, 6):
        found, expected = (decode(runner, 4, length) for runner in (moving, plain))
        assert_agree(
            [[one[slot] for slot in live] for one in found], [[one[slot] for slot in live] for one in expected]
        )
    expected = begin(plain, (2, 4, [1, 2]), (0, 0, [3]))
    assert_agree(begin(moving, (2, 4, [1, 2]), (0, 0, [3])), expected)
    for runner in (plain, moving):
        runner.copy([2], [0], 3)
    assert_agree(begin(moving, (0, 3, [4])), begin(plain, (0, 3, [4])))
    inputs, slots = moving._make_inputs(
        [PrefillChunk(slot=2, start=0, ids=[4])], PrefillSize(tokens=1, chunks=1, width=1), static=False
    )
    assert (inputs.rows.tolist(), inputs.slots.tolist(), slots.tolist()) == ([1], [1], [2])


def test_a_swap_takes_along_how_its_slots_sample():
    runner = runner_of()
    read_any_row(runner)
    begin(
        runner,
        (0, 0, [5, 6]),
        sampling=Sampling(max_tokens=3, stop_ids=(), temperature=0.5, top_p=0.9, top_k=7, seed=4),
    )
    begin(runner, (2, 0, [7]), sampling=Sampling(max_tokens=2, stop_ids=(), temperature=2.0, seed=5), drawn=1)
    of_slots = (runner._ids, runner._positions, runner._drawn, runner._top_k, runner._temperature, runner._top_p)
    before = [tensor[[0, 2]].tolist() for tensor in (*of_slots, runner._active, runner._uniforms)]
    runner.swap([2], [0], 2)
    after = [tensor[[2, 0]].tolist() for tensor in (*of_slots, runner._active, runner._uniforms)]
    assert after == before
    assert (runner._top_k[:3].tolist(), runner._drawn[:3].tolist()) == ([0, 0, 7], [2, 0, 1])
    runner.deactivate([2])
    assert [tensor[2].item() for tensor in (*of_slots[:3], runner._active)] == [0, 0, 0, False]
    assert runner._active[0], "the other goes on"
    assert runner._drawn[0] == 2


def test_prefills_too_long_to_be_worth_it_are_not_padded(monkeypatch):
    monkeypatch.setattr("turnwise.engines.local.runner._REPLAYED_TOKENS", 4)
    runner = runner_of(replayed=True)
    begin(runner, (0, 0, [1, 2, 3]), (1, 0, [4, 5]))
    assert runner._graphs.keys == []
    begin(runner, (2, 0, [1, 2, 3, 4]))
    size = PrefillSize(tokens=256, chunks=16, width=256)
    assert runner._graphs.keys == [size, (size, True, False)]


@pytest.mark.parametrize(("ids", "tokens"), [([5] * 33, 8), ([5, 6], 33)])
def test_what_was_recorded_is_forgotten_when_a_tensor_of_it_is_replaced(ids, tokens):
    """A cache of 32 keys a slot, or 32 uniforms, does no longer."""
    runner = runner_of(replayed=True)
    begin(runner, (0, 0, [5, 6]))
    assert runner._graphs.times_cleared == 0
    begin(runner, (1, 0, ids), sampling=Sampling(max_tokens=tokens, stop_ids=(), temperature=0))
    assert runner._graphs.times_cleared == 1


async def converse(engine, number):
    """Three sampled turns, with something to read between."""
    source = random.Random(number)
    prompt, said = [source.randrange(VOCABULARY) for _ in range(4 + 3 * number)], []
    for turn in range(3):
        sampling = Sampling(max_tokens=4 + (number + turn) % 5, stop_ids=(3, 7, 11), seed=100 * number + turn)
        said.append(await engine.generate(str(number), prompt, sampling))
        prompt = [*prompt, *said[-1].ids, *(source.randrange(VOCABULARY) for _ in range(5))]
    return said


@pytest.mark.parametrize("moves_keys", [True, False])
@pytest.mark.parametrize("slots", [2, 5])
def test_an_engine_that_replays_samples_the_same(slots, moves_keys):
    """Several turns of several conversations, with slots that move, grow and change hands."""

    async def everyone(engine):
        return await asyncio.gather(*(converse(engine, number) for number in range(5)))

    settings = LocalEngineSettings(slots=slots, prefill_tokens=24)
    plain, replaying = (LocalEngine(make_model(), settings=settings) for _ in range(2))
    replays = replay(replaying._runner)
    keep_slots_in_rows(plain._runner)
    (keep_slots_in_rows if moves_keys else read_any_row)(replaying._runner)
    expected, found = asyncio.run(everyone(plain)), asyncio.run(everyone(replaying))
    for one, other in zip(chain(*expected), chain(*found), strict=True):
        assert_agree((other.ids, other.logprobs), (one.ids, one.logprobs))
    prefills = [key for key in replays.keys if isinstance(key, PrefillSize)]
    assert len(prefills) > 2 * len(set(prefills)), "most were replayed"
    assert len(prefills) < len(replays.keys), "and decode steps were"
    rows = replaying._runner._rows.tolist()
    assert sorted(rows) == list(range(slots + 1))
    if moves_keys or slots == 5:  # of two slots, the one may have come back
        assert (rows == sorted(rows)) == moves_keys


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 8), (torch.bfloat16, 6), (torch.float32, 3)])
def test_rows_are_copied_up_to_a_length_whatever_their_numbers_are(dtype, size):
    """Row 0 to 2 and row 2 to 1 at once: all are read before any is written."""
    cache = KVCache(rows=3, dtype=dtype)
    cache.reserve(5, 3)
    keys, values = cache.layer(0, torch.zeros(1, 2, size))
    for tensor, sign in ((keys, 1), (values, -1)):
        tensor.copy_(sign * torch.arange(tensor.numel()).view(tensor.shape) % 250)
    before = [tensor.clone() for tensor in (keys, values)]
    cache.copy(torch.tensor([0, 2]), torch.tensor([2, 1]), 3)
    for tensor, was in zip((keys, values), before, strict=True):
        for target, source in ((2, 0), (1, 2)):
            assert tensor[target, :, :3].equal(was[source, :, :3])
            assert tensor[target, :, 3:].equal(was[target, :, 3:])
        assert tensor[[0, 3]].equal(was[[0, 3]])
