"""How many held-out questions the writer would ask about if it were not given them to avoid.

It matters where questions are held out in secret: the writer can avoid only what it is given.
"""

from pathlib import Path

from turnwise.envs.qa.writer.files import read_source
from turnwise.envs.qa.writer.questions import write_questions


def measure_reach(folder: Path, count: int) -> dict[str, int]:
    """Of a folder's held-out compositional and inference questions, those whose passages a written one would have."""
    source = read_source(folder)
    asked = [one for one in source.avoid if one.source == "2wiki" and one.type in ("compositional", "inference")]
    written = write_questions(source.book, count=count)
    sets = {frozenset(one.supporting_ids) for one in written}
    reached = sum(frozenset(one.supporting_ids) in sets for one in asked)
    return {"written": len(written), "held_out": len(asked), "reached": reached}
