"""How much of the host's memory is free: what the kernel has, or less where a control group limits the process."""

import pytest

from turnwise.training import memory
from turnwise.training.memory import free_memory


def write_group(folder, *, version, limit, used, cached):
    folder.mkdir(parents=True, exist_ok=True)
    one, two, stat = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    (folder / one).write_text(f"{limit}\n")
    (folder / two).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 3\n{stat} {cached}\n")


@pytest.mark.parametrize(
    ("membership", "groups", "expected"),
    [
        # A container: its own group is the root of what it sees. 100 less 70, of which 15 are cached files.
        ("0::/\n", {"": {"version": 2, "limit": 100, "used": 70, "cached": 15}}, [45]),
        ("0::/\n", {"": {"version": 2, "limit": "max", "used": 70, "cached": 15}}, []),
        ("0::/host/pod\n", {"": {"version": 2, "limit": 100, "used": 70, "cached": 0}}, [30]),
        # A scheduler's job, whose parent is limited, too.
        (
            "0::/job/task\n",
            {
                "job/task": {"version": 2, "limit": 100, "used": 10, "cached": 0},
                "job": {"version": 2, "limit": 200, "used": 180, "cached": 0},
            },
            [90, 20],
        ),
        (
            "3:cpu:/\n4:memory:/job\n0::/\n",
            {"memory/job": {"version": 1, "limit": 100, "used": 40, "cached": 5}},
            [65],
        ),
        ("3:cpu:/\n", {}, []),
    ],
)
def test_what_a_control_group_leaves(tmp_path, membership, groups, expected):
    (tmp_path / "cgroup").write_text(membership)
    for name, group in groups.items():
        write_group(tmp_path / "mount" / name, **group)
    assert list(memory._read_group_room(tmp_path / "cgroup", tmp_path / "mount")) == expected


def test_the_least_of_all_is_free(monkeypatch):
    monkeypatch.setattr(memory, "_read_group_room", lambda *given: iter([50.0, 30.0]))
    monkeypatch.setattr(memory, "read_kernel_bytes", lambda *given: 40.0)
    assert free_memory() == 30.0
    monkeypatch.setattr(memory, "_read_group_room", lambda *given: iter([]))
    assert free_memory() == 40.0
    monkeypatch.setattr(memory, "read_kernel_bytes", lambda *given: 0.0)
    assert free_memory() == float("inf"), "nothing tells: no reason to think that there is too little"
