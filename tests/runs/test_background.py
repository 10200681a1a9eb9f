"""Files written behind the run: in order, whole before a flush returns, and never lost without a word."""

import threading
import weakref
from functools import partial

import pytest

from turnwise.runs.background import _WAITING, BackgroundWriter


def test_writes_run_in_order_and_a_flush_waits_for_them():
    done, gate = [], threading.Event()
    with BackgroundWriter() as writer:
        writer.submit(lambda: (gate.wait(5), done.append(0)))
        writer.submit(lambda: done.append(1))
        assert done == [], "the run goes on meanwhile"
        gate.set()
        writer.flush()
        assert done == [0, 1]
        writer.submit(lambda: done.append(2))
    assert done == [0, 1, 2], "the end is a flush"


def fail():
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_is_raised_once_by_the_next_call_and_nothing_is_written_after_it():
    done = []
    with BackgroundWriter() as writer:
        writer.submit(fail)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
        writer.submit(lambda: done.append(1))
        writer.flush()
        assert done == [1]
        gate = threading.Event()
        writer.submit(lambda: (gate.wait(5), fail()))
        writer.submit(lambda: done.append(2))
        gate.set()
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
        assert done == [1], "a file after a missing one would pretend that none is missing"


def test_an_error_at_the_end_is_raised_unless_the_run_has_one_of_its_own():
    with pytest.raises(OSError, match="No space left"), BackgroundWriter() as writer:
        writer.submit(fail)
    writer = BackgroundWriter()
    writer.submit(fail)
    writer.__exit__(KeyError, KeyError(), None)


class FailsMeanwhile(BackgroundWriter):
    """Its thread meets an error right after the run has looked for one."""

    found = None
    meets = OSError(28, "No space left on device")

    @property
    def _error(self):
        found = self.found
        self.found, self.meets = found or self.meets, None
        return found

    @_error.setter
    def _error(self, error):
        self.found = error


def test_an_error_that_comes_as_the_run_looks_for_one_is_raised_by_its_next_look():
    writer = FailsMeanwhile()
    writer.check()
    with pytest.raises(OSError, match="No space left"):
        writer.check()
    writer.check()


def test_a_run_faster_than_its_disk_waits_for_it():
    gate, done = threading.Event(), []
    with BackgroundWriter() as writer:
        submitted = []

        def submit_all():
            for number in range(_WAITING + 3):
                writer.submit(lambda: (gate.wait(5), done.append(0)))
                submitted.append(number)

        run = threading.Thread(target=submit_all)
        run.start()
        run.join(0.3)
        assert len(submitted) <= _WAITING + 1, "one under way, the others waiting"
        gate.set()
        run.join(5)
    assert len(done) == _WAITING + 3


def test_a_writer_that_wrote_nothing_has_no_thread():
    before = threading.active_count()
    with BackgroundWriter() as writer:
        assert threading.active_count() == before
        writer.flush()


def test_what_a_write_held_is_free_once_it_is_written():
    held = threading.Event()
    there = weakref.ref(held)
    with BackgroundWriter() as writer:
        writer.submit(partial(threading.Event.set, held))
        del held
        writer.flush()
        assert there() is None, "a checkpoint's copy is as large as the model, and a second one is made after the flush"
