"""`turnwise questions`: training questions for a search agent, written from a corpus by templates or by a model, and
divided into those that are demonstrated and those that RL learns on."""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnwise.cli.arguments import print_line
from turnwise.errors import ConfigError
from turnwise.spelling import suggest

if TYPE_CHECKING:
    from turnwise.agents.endpoint import EndpointSettings
    from turnwise.types import Json

HELP = "write training questions from a corpus, by templates or by a model"
EXPECTS = "a corpus and the file to write"

_BY_TEMPLATES: Final = 20_000
_BY_MODEL: Final = 1_000
_REPLY_TOKENS: Final = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus", type=Path, help="a corpus file, a folder of documents, or one with a corpus and questions of its own"
    )
    parser.add_argument("target", type=Path, help="the .jsonl or .jsonl.gz file to write; with --divide, a folder")
    parser.add_argument("--count", type=int, metavar="N", help="at most N questions (default: 20000; by a model, 1000)")
    parser.add_argument(
        "--bridges", type=int, metavar="N", help="at most N more, in the shapes of HotpotQA's and MuSiQue's questions"
    )
    parser.add_argument(
        "--contrasts", type=int, metavar="N", help="at most N more, in the shapes of HotpotQA's comparisons"
    )
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
    parser.add_argument(
        "--divide",
        metavar="NAME",
        help="a recipe's questions, divided for SFT and RL, into target/NAME: the recipe says which; or a file",
    )
    parser.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible API whose model writes the questions")
    parser.add_argument("--api-model", metavar="NAME", help="which of the endpoint's models")
    parser.add_argument("--key-env", metavar="VARIABLE", help="the environment variable with the endpoint's key")
    parser.add_argument(
        "--api", action="append", default=[], metavar="a=b", help="such as concurrency=4 or options.max_tokens=500"
    )


def run(options: argparse.Namespace) -> int:
    from turnwise.agents.endpoint import read_endpoint
    from turnwise.envs.qa.writer.files import read_source, write_explained, write_new

    take = _read_slice(options.take)
    endpoint = read_endpoint(options.endpoint, options.api_model, key_env=options.key_env, settings=options.api)
    if endpoint is not None:
        if options.explain or options.take or options.divide or options.bridges or options.contrasts:
            raise ConfigError(
                "--explain, --take, --divide, --bridges and --contrasts are about questions by templates: leave them "
                "out with --endpoint"
            )
        summary = asyncio.run(_ask_model(options, endpoint))
    elif options.divide is not None:
        return _divide(options)
    else:
        source = read_source(options.corpus, options.avoid)
        if options.explain:
            summary = write_explained(source, options.target)
        else:
            count = options.count or _BY_TEMPLATES
            more = {"bridges": options.bridges or 0, "contrasts": options.contrasts or 0}
            summary = write_new(source, options.target, count=count, seed=options.seed, take=take, **more)
    print_line(f"{options.target}: {summary}")
    return 0


async def _ask_model(options: argparse.Namespace, settings: "EndpointSettings") -> str:
    """Has the endpoint's model write the questions; a request that fails for good costs one question."""
    from turnwise.agents.endpoint import ContextFullError, Endpoint, EndpointDownError
    from turnwise.envs.qa.writer.files import write_asked

    endpoint = Endpoint(settings)

    async def ask(prompt: str) -> str | None:
        request: dict[str, Json] = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": _REPLY_TOKENS,
            "seed": options.seed,
        }
        try:
            return (await endpoint.complete(request, turn=0, lose=lambda seconds: None)).content
        except (ContextFullError, EndpointDownError):
            return None

    return await write_asked(
        options.corpus,
        options.target,
        ask,
        avoid=options.avoid,
        count=options.count or _BY_MODEL,
        seed=options.seed,
        at_once=settings.concurrency,
    )


def _divide(options: argparse.Namespace) -> int:
    from turnwise.envs.qa.writer.division import Division, write_divided
    from turnwise.envs.qa.writer.files import read_source
    from turnwise.recipes import read_recipe
    from turnwise.settings import parse_settings

    said = ("count", "bridges", "contrasts", "seed", "take", "explain")
    if any(getattr(options, name) for name in said):
        shown = ", ".join(f"--{name}" for name in said[:-1])
        raise ConfigError(f"--divide says itself what is written: leave out {shown} and --{said[-1]}")
    if options.target.suffix in (".gz", ".jsonl") or options.target.is_file():
        raise ConfigError(f"--divide writes several files: give a folder, such as data, in place of {options.target}")
    path = _find_division(options.divide)
    division = parse_settings(Division, read_recipe(path), source=str(path))
    for line in write_divided(read_source(options.corpus, options.avoid), options.target / path.stem, division):
        print_line(line)
    return 0


def _find_division(name: str) -> Path:
    from turnwise.recipes import packaged_divisions

    packaged = packaged_divisions()
    if name in packaged:
        return packaged[name]
    if Path(name).is_file():
        return Path(name)
    known = suggest(name, packaged) or f"; there are: {', '.join(packaged)}"
    raise ConfigError(f"--divide: there is no file '{name}', nor a division of that name{known}")


def _read_slice(text: str | None) -> slice:
    """`_read_slice("0:5000") == slice(0, 5000)`."""
    if text is None:
        return slice(None)
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise ConfigError(f"--take: '{text}' is not a range: write FIRST:LAST, such as 0:5000")
    return slice(int(first or 0), int(last) if last else None)
