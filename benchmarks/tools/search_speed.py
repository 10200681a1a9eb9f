"""How fast BM25 answers: `python -m benchmarks.tools.search_speed [CORPUS [QUESTIONS.jsonl.gz]]`.

Without a corpus it makes 25,000 passages whose words fall off as those of English do. The target: at least 2,000
queries a second in batches, and a single query in less than 5 ms, on 2 cores.
"""

import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.retrieval import Index, Passage
from turnwise.tools.search.tool import open_index

_WORDS = 100_000
_BATCH = 64


def main(arguments: list[str]) -> None:
    passages = read_corpus(arguments[0]) if arguments else make_passages(25_000)
    queries = read_questions(Path(arguments[1])) if arguments[1:] else make_queries(passages, 2_000)
    console = Console(highlight=False)
    console.print(f"{len(passages):,} passages, {len(queries):,} queries, the best 5 of each")
    with tempfile.TemporaryDirectory() as cache:
        for did in ("built", "loaded"):
            start = time.perf_counter()
            index = open_index(passages, cache=cache)
            console.print(f"{did} in {time.perf_counter() - start:.2f} s")
        measure(index, queries, console)


def measure(index: Index, queries: list[str], console: Console) -> None:
    """Wall-clock time, which a busy machine shares out, and the process's own time on a core, which it does not."""
    index.query(queries[:_BATCH], 5)
    start, started = time.perf_counter(), time.process_time()
    for first in range(0, len(queries), _BATCH):
        index.query(queries[first : first + _BATCH], 5)
    wall, core = time.perf_counter() - start, time.process_time() - started
    console.print(
        f"batches of {_BATCH}: {len(queries) / wall:.0f} queries/s ({len(queries) / core:.0f} per second of a core)"
    )
    single = []
    for query in queries:
        start = time.perf_counter()
        index.query([query], 5)
        single.append(1000 * (time.perf_counter() - start))
    console.print(f"single queries: median {statistics.median(single):.2f} ms, slowest {max(single):.2f} ms")


def make_passages(number: int) -> list[Passage]:
    """Passages of 40 to 100 words, drawn by Zipf's law."""
    draw = random.Random(0)
    weights = [1 / (rank + 2.7) for rank in range(_WORDS)]
    words = draw.choices(range(_WORDS), weights, k=number * 70)
    texts = (words[i * 70 : i * 70 + draw.randint(40, 70)] for i in range(number))
    return [
        Passage(id=str(i), title=f"w{draw.randrange(_WORDS)}", text=" ".join(f"w{word}" for word in text))
        for i, text in enumerate(texts)
    ]


def make_queries(passages: list[Passage], number: int) -> list[str]:
    """Fourteen words of one passage each, common ones included, as a question has them."""
    draw = random.Random(1)
    return [" ".join(draw.sample(draw.choice(passages).text.split(), 14)) for _ in range(number)]


def read_questions(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["question"] for line in lines]


if __name__ == "__main__":
    main(sys.argv[1:])
