"""How long one call of the python tool takes in each sandbox: `python -m benchmarks.tools.sandbox_speed`.

The median of calls of `6 * 7`, one after the other; a sandbox that this machine lacks is named with the reason.
"""

import asyncio
import statistics
import time

from rich.console import Console
from rich.table import Table

from turnwise.errors import ToolError
from turnwise.tools.sandbox import Sandbox, SandboxSettings, open_sandbox

KINDS = ("process", "bubblewrap", "gvisor", "container")
CALLS = 21


def main() -> None:
    """Prints the table."""
    table = Table("sandbox", "seconds a call", title=f"median of {CALLS} calls")
    for kind in KINDS:
        try:
            table.add_row(kind, f"{asyncio.run(measure(open_sandbox(SandboxSettings(kind=kind)))):.3f}")
        except ToolError as error:
            table.add_row(kind, str(error).partition("\n")[0])
    Console(highlight=False).print(table)


async def measure(sandbox: Sandbox) -> float:
    """Seconds of one call."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        assert (await sandbox.run("6 * 7")).output == "42\n"
        times.append(time.perf_counter() - start)
    await sandbox.close()
    return statistics.median(times)


if __name__ == "__main__":
    main()
