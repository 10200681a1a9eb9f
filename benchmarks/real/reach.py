"""How many held-out questions the writer would ask about if it were not given them to avoid.

It matters where questions are held out in secret: the writer can avoid only what it is given.
"""

from collections import Counter
from pathlib import Path

from turnwise.envs.qa.writer.files import read_source
from turnwise.envs.qa.writer.questions import write_questions


def measure_reach(folder: Path, count: int, bridges: int = 0, contrasts: int = 0) -> dict[str, object]:
    """Of a folder's held-out questions, by source and type, those whose passages are all in one written question."""
    source = read_source(folder)
    written = write_questions(source.book, count=count, bridges=bridges, contrasts=contrasts)
    by_passage: dict[str, list[frozenset[str]]] = {}
    for one in written:
        for name in one.supporting_ids:
            by_passage.setdefault(name, []).append(frozenset(one.supporting_ids))
    held_out: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for asked in source.avoid:
        kind = f"{asked.source} {asked.type}"
        wanted = frozenset(asked.supporting_ids)
        held_out[kind] += 1
        reached[kind] += any(wanted <= ids for ids in by_passage.get(min(wanted, default=""), ()))
    kinds = {kind: {"held_out": held_out[kind], "reached": reached[kind]} for kind in sorted(held_out)}
    return {"written": len(written), "held_out": held_out.total(), "reached": reached.total(), "kinds": kinds}
