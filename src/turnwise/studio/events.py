"""What changes in runs, told to open pages as server-sent events, so that their curves move while runs train.

Invariant: looking costs a few `stat` calls a second, and nothing while no page is open; training is never waited for.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from turnwise.studio.library import Library, Run
from turnwise.types import Json

_SECONDS: Final = 1.0
"""Between two looks; a server that stops waits for the present one. Waking up is most of what an idle page costs."""
_SILENCE: Final = 15
"""Looks without a change after which a comment keeps the connection open."""


async def watch(library: Library, ids: Sequence[str], stopping: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Events of these runs, or of all, until the server stops.

    `change` names a run that has written; `runs` tells of new and removed ones.
    """
    known: dict[str, Json] | None = None
    quiet = 0
    yield b"retry: 2000\n\n"
    while not stopping():
        seen = await asyncio.to_thread(_look, library, ids)
        quiet += 1
        if known is not None:
            if seen.keys() != known.keys():
                yield _event("runs", {})
            for run_id, prints in seen.items():
                if run_id in known and known[run_id] != prints:
                    yield _event("change", {"id": run_id})
                    quiet = 0
        if quiet >= _SILENCE:
            yield b": still here\n\n"
            quiet = 0
        known = seen
        await asyncio.sleep(_SECONDS)


def _look(library: Library, ids: Sequence[str]) -> dict[str, Json]:
    return {run.id: _fingerprint(run) for run in library.runs() if not ids or run.id in ids}


def _fingerprint(run: Run) -> Json:
    """Changes whenever the run writes metrics, findings or trajectories."""
    directory = run.directory
    prints: list[Json] = []
    for path in (directory.metrics, directory.path / "findings.jsonl", directory.trajectories):
        try:
            stat = path.stat()
            prints += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            prints.append(None)
    return prints


def _event(kind: str, data: Json) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
