"""The collector within a stretch of work, and as it is afterwards."""

import gc

import pytest

from turnwise.compute.garbage import gc_between_steps, reduced_gc, without_gc


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


def test_what_was_made_within_is_left_alone_as_well_once_it_is_excluded():
    with reduced_gc() as exclude:
        frozen = gc.get_freeze_count()
        kept, ring = [[] for _ in range(1000)], []
        ring.append(ring)
        del ring
        collected = gc.get_stats()[2]["collected"]
        exclude()
        assert gc.get_freeze_count() >= frozen + len(kept)
        assert gc.get_stats()[2]["collected"] > collected, "what is garbage is not kept for ever"
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


def test_nothing_is_collected_during_imports():
    kept = []
    gc.callbacks.append(lambda phase, info: kept.append(info["generation"]))
    try:
        with without_gc():
            rings = [[] for _ in range(60_000)]
            for ring in rings:
                ring.append(ring)
            assert kept == []
            made = len(rings)
        assert gc.isenabled()
        assert gc.get_freeze_count() > made, "what was made is left alone"
    finally:
        gc.callbacks.pop()
        gc.unfreeze()


def test_collections_go_on_when_an_import_fails():
    frozen = gc.get_freeze_count()
    with pytest.raises(KeyError), without_gc():
        raise KeyError
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with without_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
