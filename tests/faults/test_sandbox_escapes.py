"""Programs that try to get out of the sandbox (`tests/support/escapes/`), at each level; below `kernel` nothing is run.

The short form tries most of them in one process; `TURNWISE_FAULTS=long` (`make test-faults`) tries each by itself.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escapes.attempts import ALONE, ATTEMPTS, GROUPED
from turnwise.errors import ToolError
from turnwise.tools.sandbox import Resource, SandboxSettings, factory, open_sandbox, process
from turnwise.tools.sandbox.process import ProcessSandbox, Protection

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attempts are made of Linux's system calls")

SUPPORT = Path(__file__).parents[1] / "support"
LONG = os.environ.get("TURNWISE_FAULTS") == "long"
SHORT_ALONE = ["thirty_two_bit_calls", "execute", "many_files", "unnamed_files", "hidden_folder", "nested_and_closed"]
LEVELS = ["all", "container", "container-landlock-1", "bubblewrap"]
LONG_LEVELS = [*LEVELS, "kernel", "container-landlock-2", "bubblewrap-alone", "gvisor"]
WALLS = frozenset(Protection) - {Protection.AUDIT_HOOK}


def attempt(level: str, folder: Path, *names: str) -> dict[str, list[str]]:
    """What each attempt reached, by name."""
    path = os.pathsep.join([str(SUPPORT), str(Path(process.__file__).parents[3])])
    run = subprocess.run(
        [sys.executable, "-m", "escapes", level, str(folder), *names],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1]
        if "isolation=" in last or "there is no program" in last or "cannot run code" in last:
            pytest.skip(last)
        raise AssertionError(run.stderr)
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(LONG, reason="each is tried by itself")
@pytest.mark.parametrize("level", LEVELS)
def test_no_attempt_gets_out(level, tmp_path):
    alone = SHORT_ALONE if level == "container" else ["nested"]
    assert attempt(level, tmp_path, "grouped", *alone) == {}


@pytest.mark.skipif(not LONG, reason="minutes")
@pytest.mark.parametrize("level", LONG_LEVELS)
def test_no_attempt_gets_out_by_itself(level, tmp_path):
    assert attempt(level, tmp_path) == {}


CONTROL = ["chmod", "utime", "truncate_while_reading", "unix_datagram", "scheduler", "sysv_queue", "spawn", "signal"]


def test_attempts_that_nothing_holds_are_seen(tmp_path):
    """Otherwise an empty list would prove nothing."""
    assert list(attempt("nothing", tmp_path, *CONTROL)) == CONTROL


@pytest.mark.skipif(not LONG, reason="a minute and a half")
def test_most_attempts_succeed_where_nothing_holds_them(tmp_path):
    assert len(attempt("nothing", tmp_path)) >= 100


def test_there_are_enough_attempts():
    assert len(ATTEMPTS) == len(GROUPED) + len(ALONE) >= 60


MISSING = {
    # without these protections, nothing of these is guarded by the kernel
    frozenset({Protection.SECCOMP}): ["the network", "processes", "memory"],
    frozenset({Protection.LANDLOCK}): ["files"],
    frozenset({Protection.MEMORY_LIMIT}): ["memory"],
    frozenset({Protection.SECCOMP, Protection.LANDLOCK}): ["the network", "files", "processes", "memory"],
    frozenset({Protection.MOUNTS, Protection.DISK_WATCH}): ["disk"],
    frozenset({Protection.MOUNTS, Protection.SECCOMP, Protection.LANDLOCK}): list(Resource),
}


@pytest.mark.parametrize("missing", MISSING, ids=lambda missing: "+".join(sorted(missing)))
@pytest.mark.parametrize("isolation", ["best", "kernel"])
def test_less_than_the_kernel_is_refused_by_name(missing, isolation, monkeypatch):
    """The audit hook is in force in all of these, and counts for nothing."""
    in_force = frozenset(Protection) - missing - {Protection.ROOT}
    monkeypatch.setattr(process, "_find_protections", lambda *_: in_force)
    with pytest.raises(ToolError) as refusal:
        ProcessSandbox(SandboxSettings(isolation=isolation))
    level = "none" if len(MISSING[missing]) == len(Resource) else "partial"
    assert f"the kernel does not guard {', '.join(MISSING[missing])}; install" in str(refusal.value)
    assert str(refusal.value).endswith(
        f"accept what this leaves open by name: isolation={level} in the settings of the sandbox"
    )


def test_a_lower_level_runs_where_it_is_named_and_warns(caplog):
    hook = (Protection.AUDIT_HOOK,)
    ProcessSandbox(SandboxSettings(isolation="none"), protections=hook)
    assert caplog.messages == [
        "python tool: isolation=none: on this machine the kernel does not guard "
        "the network, files, processes, memory, disk"
    ]
    with pytest.raises(ToolError, match="isolation=none in the settings"):
        ProcessSandbox(SandboxSettings(isolation="partial"), protections=hook)
    ProcessSandbox(SandboxSettings(isolation="partial"), protections=(*hook, Protection.LANDLOCK, Protection.MOUNTS))


def test_another_backend_is_used_where_the_process_leaves_gaps(monkeypatch, tmp_path):
    """`auto` takes the first that leaves none; where none does, one line names what each lacked."""

    def less(settings: SandboxSettings) -> ProcessSandbox:
        return ProcessSandbox(settings, protections={Protection.AUDIT_HOOK})

    monkeypatch.setattr(sys.modules[__name__], "less", less, raising=False)
    monkeypatch.setattr(factory, "SANDBOXES", {**factory.SANDBOXES, "process": f"{__name__}:less"})
    monkeypatch.setattr(factory, "_IN_ORDER", ("process", "bubblewrap"))
    monkeypatch.setattr(sys.modules[__name__], "full", ProcessSandbox, raising=False)
    factory.SANDBOXES["bubblewrap"] = f"{__name__}:full"
    found = open_sandbox(SandboxSettings())
    assert isinstance(found, ProcessSandbox)
    assert not found.gaps
    factory.SANDBOXES["bubblewrap"] = "turnwise.tools.sandbox.bubblewrap:BubblewrapSandbox"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ToolError, match=r"^python tool: isolation=best: .*tried in vain: bubblewrap: .*no program bwrap"
    ):
        open_sandbox(SandboxSettings())
    accepted = open_sandbox(SandboxSettings(isolation="none"))
    assert set(accepted.gaps) == set(Resource)
