"""`turnwise questions`: training questions for a search agent, written from a corpus by templates."""

import argparse
from pathlib import Path

from turnwise.cli.arguments import print_line
from turnwise.errors import ConfigError

HELP = "write training questions from an encyclopedic corpus"
EXPECTS = "a corpus and the file to write"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", type=Path, help="a corpus file, or a folder with a corpus and questions of its own")
    parser.add_argument("target", type=Path, help="the .jsonl or .jsonl.gz file to write")
    parser.add_argument("--count", type=int, default=20000, metavar="N", help="at most N questions (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument("--take", metavar="FIRST:LAST", help="only a part of them, such as 0:5000")
    parser.add_argument(
        "--avoid",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="questions whose text and supporting passages must not be used, besides the folder's dev and test",
    )
    parser.add_argument("--explain", action="store_true", help="write the folder's training questions, with evidence")


def run(options: argparse.Namespace) -> int:
    from turnwise.envs.qa.writer.files import read_source, write_explained, write_new

    take = _read_slice(options.take)
    source = read_source(options.corpus, options.avoid)
    if options.explain:
        summary = write_explained(source, options.target)
    else:
        summary = write_new(source, options.target, count=options.count, seed=options.seed, take=take)
    print_line(f"{options.target}: {summary}")
    return 0


def _read_slice(text: str | None) -> slice:
    """`_read_slice("0:5000") == slice(0, 5000)`."""
    if text is None:
        return slice(None)
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise ConfigError(f"--take: '{text}' is not a range: write FIRST:LAST, such as 0:5000")
    return slice(int(first or 0), int(last) if last else None)
