"""A model that knows the words of the tiny game, so that runs which start from it learn in every step."""

import signal
from collections import Counter

import pytest

from tiny_runs import cold_model


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard():
    """Under `nohup`, and in the background of a script, processes ignore these signals, and so would the runs here."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def cold(tmp_path_factory):
    return cold_model(tmp_path_factory)


@pytest.fixture(scope="session")
def sections(cold):
    """Six steps, saved after the fifth and the last: a signal at another step must save by itself."""
    return {"model": {"name": str(cold)}, "steps": 6, "checkpoint": {"every": 5}}


def pytest_terminal_summary(terminalreporter):
    """Where the kills of the runs that ended right have struck."""
    properties = [one for report in terminalreporter.getreports("passed") for one in report.user_properties]
    phases = Counter(phase for name, value in properties if name == "killed in" for phase in value.split(", "))
    if phases:
        parts = ", ".join(f"{count} in {phase}" for phase, count in phases.most_common())
        terminalreporter.write_line(f"{phases.total()} kills: {parts}")
