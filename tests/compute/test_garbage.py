"""The collector within a stretch of work, and as it is afterwards."""

import gc

import pytest

from turnwise.compute.garbage import gc_between_steps, reduced_gc


def test_what_is_there_is_left_alone_and_what_is_new_is_collected_later():
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    with reduced_gc():
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[0] > usual[0]
        assert gc.get_threshold()[1:] == usual[1:]
        ring = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0, "it still can be"
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0


def test_it_collects_as_before_when_the_work_fails():
    usual = gc.get_threshold()
    with pytest.raises(KeyError), reduced_gc():
        raise KeyError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, 0)


def test_a_step_is_not_interrupted_and_collected_after():
    """Rings of lists, which only the collector frees: 60,000 of them are there until the step is over."""
    usual = gc.get_threshold()
    kept = []
    with reduced_gc(), gc_between_steps() as collect:
        gc.callbacks.append(lambda phase, info: kept.append(info["generation"]) if phase == "start" else None)
        try:
            for _ in range(60_000):
                ring = []
                ring.append(ring)
            assert kept == [], "nothing is collected within a step"
            collect()
            assert kept == [1]
            assert gc.get_count()[0] < 1000
            for _ in range(49):
                collect()
            assert kept == [1] * 49 + [2], "and what has survived some steps, now and then"
        finally:
            gc.callbacks.pop()
    assert gc.get_threshold() == usual
