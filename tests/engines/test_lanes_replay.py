"""Prefills that are padded to few sizes and replayed: where their numbers lie, and that they sample what others do.

On a GPU graphs replay them and kernels read them; here a graph is a step that is called again, over the tensors it was
first called with.
"""

import asyncio
import random
from itertools import chain

import pytest

from tiny_models import VOCABULARY, greedy_by_full_forwards, make_model
from turnwise.engines import EngineSettings, LocalEngine, Sampling
from turnwise.engines.local.cache import Prefill
from turnwise.engines.local.runner import Feed, Lanes, _Size

GREEDY = Sampling(max_tokens=8, stop_ids=(), temperature=0)


class Replays:
    """Steps recorded as CUDA graphs are: whatever a later one brings along, the first of its key is run again, and what
    it gives lies where it lay the first time."""

    enabled = True

    def __init__(self):
        self.keys, self.times_forgotten, self._recorded = [], 0, {}

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
        self.times_forgotten += 1


def read_as_kernels_do(lanes):
    """Kernels take the tokens of a feed from its start to the next one's, and all its lane holds: so does this."""
    plain = lanes._forward.prefill

    def prefill(aim):
        fed = int(aim.starts[-1])
        tokens = {name: getattr(aim, name)[:fed] for name in ("ids", "positions", "rows", "feed", "column")}
        return plain(
            Prefill(**tokens, starts=aim.starts, lanes=aim.lanes, width=aim.width, length=lanes._cache.capacity)
        )

    lanes._forward.prefill = prefill


def lanes_of(*, count=4, replayed=False):
    lanes = Lanes(make_model(), count=count, context_limit=160, autocast=None)
    assert not lanes.pads
    lanes._graphs = None
    if replayed:
        replay(lanes)
    return lanes


def replay(lanes):
    lanes._graphs = Replays()
    lanes._forward._steps.replays_prefills = True
    read_as_kernels_do(lanes)
    return lanes._graphs


def begin(lanes, *feeds, sampling=GREEDY, drawn=0):
    """Prefills `(lane, start, ids)` and gives the first token of each, and its logprob."""
    every = [Feed(lane=lane, start=start, ids=ids) for lane, start, ids in feeds]
    settings = {"greedy": sampling.temperature == 0, "truncate": False}
    return lanes.prefill(every, [sampling] * len(every), [drawn] * len(every), **settings).wait()


def both(*, count=4):
    """Lanes whose prefills are not padded, and lanes whose are."""
    return lanes_of(count=count), lanes_of(count=count, replayed=True)


def assert_agree(one, other):
    tokens, logprobs = one
    assert other[0] == tokens
    assert other[1] == pytest.approx(logprobs, abs=1e-4)


def decode(lanes, count, length):
    return lanes.decode(count, length, greedy=True, truncate=False).wait()


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        ((1, 1, 1), (256, 1, 64)),
        ((256, 2, 64), (256, 4, 64)),
        ((257, 4, 65), (384, 4, 128)),
        ((385, 5, 128), (512, 16, 128)),
        ((513, 16, 129), (768, 16, 256)),
        ((1025, 17, 1000), (1536, 64, 1024)),
        ((4160, 64, 65), (4608, 64, 128)),
        ((8320, 128, 65), (9216, 256, 128)),
        ((4096, 64, 4096), (4096, 64, 4096)),
        ((3000, 65, 100), (3072, 256, 128)),
    ],
)
def test_a_prefill_is_padded_to_one_of_few_sizes(size, rounded):
    tokens, feeds, width = size
    found = _Size(tokens=tokens, feeds=feeds, width=width).rounded_up()
    assert (found.tokens, found.feeds, found.width) == rounded


def test_there_is_room_for_every_prefill_in_its_size():
    few = set()
    for tokens in range(1, 8193, 7):
        for feeds in {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, tokens}:
            found = _Size(tokens=tokens, feeds=min(feeds, tokens), width=-(-tokens // feeds)).rounded_up()
            assert found.tokens >= tokens
            assert found.feeds >= min(feeds, tokens)
            assert found.width >= -(-tokens // feeds)
            assert found.rounded_up() == found
            few.add(found)
    coarse, fine = {256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096}, {*range(4608, 8193, 512)}
    assert {size.tokens for size in few} == coarse | fine
    assert {size.feeds for size in few} == {1, 4, 16, 64, 256, 1024, 4096, 16384}
    assert {size.width for size in few} == {64, 128, 256, 512, 1024, 2048, 4096, 8192}


def test_the_size_of_a_prefill():
    feeds = [Feed(lane=2, start=5, ids=[7, 8, 9]), Feed(lane=0, start=0, ids=[4])]
    assert _Size.of(feeds) == _Size(tokens=4, feeds=2, width=3)


def test_padding_goes_to_the_spare_row_and_spare_feeds_have_no_tokens():
    """Three tokens for lane 2, which holds five, then two for lane 0; the spare row of three lanes is 3."""
    lanes = lanes_of(count=3)
    feeds = [Feed(lane=2, start=5, ids=[7, 8, 9]), Feed(lane=0, start=0, ids=[4, 6])]
    aim = lanes._lay_out(feeds, _Size(tokens=8, feeds=4, width=4), fixed=True)
    assert aim.ids.tolist() == [7, 8, 9, 4, 6, 0, 0, 0]
    assert aim.positions.tolist() == [5, 6, 7, 0, 1, 0, 0, 0]
    assert aim.rows.tolist() == [2, 2, 2, 0, 0, 3, 3, 3]
    assert aim.feed[:5].tolist() == [0, 0, 0, 1, 1]
    assert aim.column[:5].tolist() == [0, 1, 2, 0, 1]
    assert aim.starts.tolist() == [0, 3, 5, 5, 5]
    assert aim.lanes.tolist() == [2, 0, 3, 3]
    assert (aim.width, aim.length) == (4, 32)


def test_without_padding_there_are_the_tokens_alone():
    lanes = lanes_of(count=3)
    feeds = [Feed(lane=2, start=5, ids=[7, 8, 9]), Feed(lane=0, start=0, ids=[4, 6])]
    aim = lanes._lay_out(feeds, _Size.of(feeds), fixed=False)
    assert aim.ids.tolist() == [7, 8, 9, 4, 6]
    assert aim.positions.tolist() == [5, 6, 7, 0, 1]
    assert aim.rows.tolist() == [2, 2, 2, 0, 0]
    assert (aim.feed.tolist(), aim.column.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    assert (aim.starts.tolist(), aim.lanes.tolist()) == ([0, 3, 5], [2, 0])
    assert (aim.width, aim.length) == (3, 32)


def test_a_size_has_one_desk_and_nothing_of_an_earlier_prefill_stays_on_it():
    lanes = lanes_of(count=3)
    size = _Size(tokens=6, feeds=4, width=4)
    first = lanes._lay_out([Feed(lane=lane, start=9, ids=[7, 8]) for lane in (0, 1, 2)], size, fixed=True)
    second = lanes._lay_out([Feed(lane=1, start=0, ids=[4])], size, fixed=True)
    assert first.ids.data_ptr() == second.ids.data_ptr()
    assert first.ids.tolist() == [4, 0, 0, 0, 0, 0], "a graph that was recorded with the first reads the second"
    assert first.positions.tolist() == [0] * 6
    assert first.rows.tolist() == [1, 3, 3, 3, 3, 3]
    assert first.starts.tolist() == [0, 1, 1, 1, 1]
    assert first.lanes.tolist() == [1, 3, 3, 3]
    other = lanes._lay_out([Feed(lane=1, start=0, ids=[4])], _Size(tokens=7, feeds=4, width=4), fixed=True)
    assert other.ids.data_ptr() != first.ids.data_ptr()


def test_feeds_of_any_lane_and_length_sample_the_same_when_they_are_padded():
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
    """Three times three feeds, each time others, in other lanes and further on: the same step runs again."""
    plain, padded = both()
    source = random.Random(1)
    held = [0, 0, 0, 0]
    for _ in range(3):
        feeds = []
        for lane in source.sample(range(4), 3):
            ids = [source.randrange(VOCABULARY) for _ in range(source.randrange(1, 9))]
            feeds.append((lane, held[lane], ids))
            held[lane] += len(ids)
        assert_agree(begin(padded, *feeds), begin(plain, *feeds))
    size = _Size(tokens=256, feeds=4, width=64)
    assert padded._graphs.keys == [size, (size, True, False)] * 3
    assert padded._graphs.times_forgotten == 0


def test_what_a_replay_computes_beside_its_tokens_is_counted():
    plain, padded = both()
    few = [Feed(lane=0, start=0, ids=[5] * 200), Feed(lane=1, start=0, ids=[6] * 60)]
    many = [Feed(lane=0, start=0, ids=[5] * 16385)]
    assert (plain.count_padding(few), padded.count_padding(few)) == (0, 384 - 260)
    assert padded.count_padding(many) == 0, "too many to be replayed"


def test_lanes_that_are_live_are_not_touched_by_a_padded_prefill():
    """Lane 1 has three tokens sampled before anyone else comes, and two after: the five of a full forward."""
    lanes = lanes_of(replayed=True)
    prompt = [5, 6, 7, 8]
    (first,), _ = begin(lanes, (1, 0, prompt))
    said = [first]
    for length in (5, 6):
        said.append(decode(lanes, 2, length)[0][1])
    state = (lanes._ids, lanes._positions, lanes._live, lanes._drawn, lanes._temperature, lanes._uniforms)
    before = [tensor[1].clone() for tensor in state]
    keys = [lanes._cache.layer(layer, None)[0][1].clone() for layer in (0, 1)]
    begin(lanes, (3, 0, [9, 9, 9]), (0, 0, [10]), sampling=Sampling(max_tokens=8, stop_ids=(), seed=4))
    assert all(tensor[1].equal(was) for tensor, was in zip(state, before, strict=True))
    assert all(lanes._cache.layer(layer, None)[0][1].equal(was) for layer, was in enumerate(keys))
    for length in (7, 8):
        said.append(decode(lanes, 4, length)[0][1])
    assert said == greedy_by_full_forwards(make_model(), prompt, 5)[0]


def test_a_lane_goes_on_where_its_feed_ended():
    plain, padded = both(count=3)
    for lanes in (plain, padded):
        begin(lanes, (2, 0, [5, 6, 7]), (0, 0, [9]), drawn=2)
        assert lanes._positions[:3].tolist() == [1, 0, 3]
        assert lanes._drawn[:3].tolist() == [3, 0, 3]
        assert lanes._live[:3].tolist() == [True, False, True]


def test_prefills_too_long_to_be_worth_it_are_not_padded(monkeypatch):
    monkeypatch.setattr("turnwise.engines.local.runner._REPLAYED_TOKENS", 4)
    lanes = lanes_of(replayed=True)
    begin(lanes, (0, 0, [1, 2, 3]), (1, 0, [4, 5]))
    assert lanes._graphs.keys == []
    begin(lanes, (2, 0, [1, 2, 3, 4]))
    size = _Size(tokens=256, feeds=1, width=64)
    assert lanes._graphs.keys == [size, (size, True, False)]


@pytest.mark.parametrize(("ids", "tokens"), [([5] * 33, 8), ([5, 6], 33)])
def test_what_was_recorded_is_forgotten_when_a_tensor_of_it_is_replaced(ids, tokens):
    """A cache of 32 keys a lane, or 32 uniforms, does no longer."""
    lanes = lanes_of(replayed=True)
    begin(lanes, (0, 0, [5, 6]))
    assert lanes._graphs.times_forgotten == 0
    begin(lanes, (1, 0, ids), sampling=Sampling(max_tokens=tokens, stop_ids=(), temperature=0))
    assert lanes._graphs.times_forgotten == 1


async def converse(engine, number):
    """Three sampled turns, with something to read between."""
    source = random.Random(number)
    prompt, said = [source.randrange(VOCABULARY) for _ in range(4 + 3 * number)], []
    for turn in range(3):
        sampling = Sampling(max_tokens=4 + (number + turn) % 5, stop_ids=(3, 7, 11), seed=100 * number + turn)
        said.append(await engine.generate(str(number), prompt, sampling))
        prompt = [*prompt, *said[-1].ids, *(source.randrange(VOCABULARY) for _ in range(5))]
    return said


@pytest.mark.parametrize("slots", [2, 5])
def test_an_engine_that_replays_samples_the_same(slots):
    """Several turns of several conversations, with lanes that move, grow and change hands."""

    async def everyone(engine):
        return await asyncio.gather(*(converse(engine, number) for number in range(5)))

    settings = EngineSettings(slots=slots, prefill_tokens=24)
    plain, replaying = (LocalEngine(make_model(), settings=settings) for _ in range(2))
    replays = replay(replaying._lanes)
    expected, found = asyncio.run(everyone(plain)), asyncio.run(everyone(replaying))
    for one, other in zip(chain(*expected), chain(*found), strict=True):
        assert_agree((other.ids, other.logprobs), (one.ids, one.logprobs))
    prefills = [key for key in replays.keys if isinstance(key, _Size)]
    assert len(prefills) > 2 * len(set(prefills)), "most were replayed"
    assert len(prefills) < len(replays.keys), "and decode steps were"
