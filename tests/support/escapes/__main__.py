"""Runs attempts at one level of isolation and prints what each reached: `python -m escapes LEVEL FOLDER NAME...`.

Without names, all attempts; `grouped` runs those that can share a process in one. Where the machine
does not offer the level, one line on standard error says why, and the exit status is 1.
"""

import asyncio
import json
import sys
from pathlib import Path

from escapes.attempts import ATTEMPTS, GROUPED, PREAMBLE
from escapes.world import WORD, World, adopt_orphans, forbid_namespaces
from turnwise.errors import ToolError
from turnwise.tools.sandbox import SandboxSettings
from turnwise.tools.sandbox.bubblewrap import BubblewrapSandbox
from turnwise.tools.sandbox.gvisor import GvisorSandbox
from turnwise.tools.sandbox.process import ProcessSandbox, Protection

WALLS = frozenset(Protection) - {Protection.AUDIT_HOOK}
LEVELS = {
    # `all` has the hook, which attempts take apart first; elsewhere it is not there to begin with
    "all": lambda settings: ProcessSandbox(settings),
    "kernel": lambda settings: ProcessSandbox(settings, protections=WALLS),
    "container": lambda settings: ProcessSandbox(settings, protections=WALLS),
    "container-landlock-1": lambda settings: ProcessSandbox(settings, protections=WALLS, landlock=1),
    "container-landlock-2": lambda settings: ProcessSandbox(settings, protections=WALLS, landlock=2),
    "bubblewrap": lambda settings: BubblewrapSandbox(settings, protections=WALLS),
    "bubblewrap-alone": lambda settings: BubblewrapSandbox(settings, protections=WALLS - {Protection.LANDLOCK}),
    "gvisor": lambda settings: GvisorSandbox(settings, protections=WALLS),
    "nothing": lambda settings: ProcessSandbox(
        settings.model_copy(update={"isolation": "none"}), protections={Protection.MEMORY_LIMIT}
    ),
}

WITHIN = {"gvisor": {"proc_parent_fd", "proc_first_fd"}}
"""Attempts that reach what is inside such a sandbox too: there, code can forge the report on itself."""


def join(names: list[str]) -> str:
    """One program that tries many things, one after the other, whatever comes of each."""
    return f"for name, code in {[(name, GROUPED[name]) for name in names]!r}:\n    print('#', name)\n" + (
        "    try: exec(code)\n    except Exception: pass\nprint('# tried')"
    )


async def try_all(level: str, folder: Path, names: list[str]) -> dict[str, list[str]]:
    found = {}
    with World(folder) as world:
        settings = SandboxSettings(
            seconds=2.0, memory_mb=128, disk_mb=4, output_kb=256, readable=(str(world.readable),)
        )
        sandbox = LEVELS[level](settings)
        world.changes()
        within = WITHIN.get(level, set())
        for name in (name for name in names if name not in within):
            code = join([one for one in GROUPED if one not in within]) if name == "grouped" else ATTEMPTS[name]
            result = await sandbox.run(f"{PREAMBLE}{world.names}\n{code}")
            reached = [line for line in result.output.splitlines() if line.startswith("ESCAPED") or WORD in line]
            if reached and name == "grouped":
                reached = [result.output]
            if name == "grouped" and not result.output.endswith("# tried\n"):
                reached.append(f"not all were tried: {result}")
            sys.stderr.write(f"{name} {result.exit}\n")
            if reached := reached + world.changes():
                found[name] = reached
        await sandbox.close()
        if left := world.changes() + [path.name for path in world.scratch.iterdir()]:
            found["afterwards"] = left
    return found


def main() -> None:
    level, folder, *names = sys.argv[1:]
    if level.startswith("container"):
        forbid_namespaces()
    adopt_orphans()
    try:
        found = asyncio.run(try_all(level, Path(folder), names or list(ATTEMPTS)))
    except ToolError as error:
        sys.exit(f"{error}")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
