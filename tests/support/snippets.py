"""The code blocks of a page, and a session that goes through them in order, as a reader would type them.

Invariant: a block is run as printed, or one of two written rules applies to it: `small_sizes`, which appends sizes to
commands that train or evaluate, and `EXCUSED`, which names what is not run and why. Nothing else is left out.

    fenced python        a script, unless a file's name stands before it
    `name.ext` before    the block is that file: written, and run by what comes after
    fenced bash, sh      a command per line
    indented             a command per line, where their first words are in `COMMANDS`; else output or a picture
"""

import io
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from turnwise.cli.main import main
from turnwise.config import Config, load_config, load_run_config
from turnwise.envs.registry import MixtureSettings

COMMANDS = ("turnwise", "make", "pip", "python", "python3", "pytest", "torchrun", "docker", "cd", "source", "ray")
EXCUSED = {
    r"turnwise bench ": "a benchmark takes minutes to hours: tests/benchmarks runs each at the size of a test",
    r"make ": "make runs these very tests, or takes minutes",
    r"turnwise train gpu-multihop": "a GPU, pretrained weights and questions that the reader writes first",
    r"turnwise train gpu-(alfworld|scienceworld|bfcl)": "a GPU, pretrained weights and the package of the environment",
    r"turnwise train .*callbacks=": "a tracker's own package: make test-trackers runs each",
    r"turnwise train .*engine.kind=vllm": "needs the vllm package: make test-vllm trains with it",
    r"turnwise eval .*engine.kind=openai": "a server of the reader's; tests/cli has one",
    r"python examples/(mixture|memory).py": "minutes: tests/examples runs them small",
    r"python examples/support.py": "minutes: tests/newcomer/whole/support_learns.py runs it, at its full size",
    r"docker ": "needs a daemon of docker",
    r"turnwise export ": "the run that torchrun made; tests/training/test_checkpoint_format.py runs the command",
    r"(CUDA_VISIBLE_DEVICES=\S+ )?ray start |turnwise train .*cluster[.=].*ray": "needs the ray package: "
    "make test-scale runs such clusters",
    r"torchrun ": "tests/newcomer/test_row_09_torchrun.py runs it",
    r"(\S+/bin/)?pip install |python3? -m venv ": "make test-newcomer runs it: it installs packages",
    r"turnwise (check|train|eval) \S*.*\b(hotpot|hf://)": "the reader's copy of a public dataset",
    r"turnwise questions data/multihop ": "the reader's own corpus; tests/cli/test_questions.py runs the command",
    r"turnwise eval .*--endpoint ": "an endpoint of the reader's; tests/agents plays through one",
    r"turnwise questions documents ": "an endpoint of the reader's; tests/cli/test_questions.py asks one",
    r"python -m benchmarks\.": "measures the reader's own runs or machine; tests/benchmarks has each",
    r"turnwise doctor runs/": "a run of the reader's, in which it may find something; tests/doctor examines runs",
    r"PYTHONPATH=tests/support python ": "plants every fault: tests/doctor/test_doctor_faults.py does",
    r"turnwise studio": "serves until it is stopped; tests/studio runs it",
    r"turnwise serve-openenv ": "serves until it is stopped: tests/interop/test_openenv_package.py runs it",
    r"turnwise train examples/openenv/": "needs a server of the openenv package: make test-interop runs it",
    r"turnwise train examples/verifiers/": "needs the verifiers package: make test-interop runs it",
    r"turnwise serve-mcp ": "serves until it is stopped: tests/interop/test_serve_mcp.py runs it",
    r"turnwise train examples/mcp/": "needs the mcp package: make test-interop runs it",
    r"turnwise (check|play|train) (reasoning.gym|textworld|alfworld|scienceworld|textarena|bfcl|minigrid)": "needs its "
    "package: make test-envs plays each",
    r"(?s).*AlfWorldServer\(": "needs the alfworld package: tests/interop/envs/test_alfworld.py makes such files",
    r"(?s).*MCPTools\(": "needs the mcp package and a pretrained model: tests/interop has such environments",
    r"turnwise gateway ": "serves until it is stopped; tests/gateway/test_collect.py runs it",
    r"PYTHONPATH=examples/any_agent turnwise train .*openai_sdk": "needs the openai package: make test-interop runs it",
    r"(?s).*client\.openai\(\)": "needs the openai package and a pretrained model: tests/interop runs such agents",
    r"(?s).*AgentProgram\(\s*command=\[\"node\"": "a program of the reader's: tests/gateway runs commands",
}
"""What is not run, by how a command begins or what a script has in it, and why."""
SMALL_MODEL = "{layers: 1, width: 32, heads: 2, positions: 4096, vocabulary: 400, induction: false}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """`Snippet(page="README.md", line=51, kind="shell", text="turnwise check examples/guess.py:Guess")`."""

    page: str
    line: int
    kind: str
    """`shell`, `python`, `file`, or the language of a fence that is not run."""
    text: str
    file: str = ""
    """Where a block of kind `file` is written."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0] if self.text else self.kind}"

    @property
    def excuse(self) -> str:
        """Why it is not run; empty where it is."""
        if self.kind not in ("shell", "python"):
            return ""
        return next((why for pattern, why in EXCUSED.items() if re.match(pattern, self.text)), "")


def snippets_of(page: Path) -> list[Snippet]:
    """Every block of a page, in order; commands one by one."""
    found: list[Snippet] = []
    for start, language, lines, before in _blocks(page.read_text(encoding="utf-8").splitlines()):
        text = "\n".join(lines)
        is_shell = language in ("", "bash", "sh", "console")
        commands = _commands(lines, f"{page.name}:{start}") if is_shell else []
        named = re.search(r"`([\w./-]+\.\w+)`:?$", before)
        if named and not commands:
            found.append(Snippet(page=page.name, line=start, kind="file", text=text, file=named[1]))
        elif is_shell:
            found += [
                Snippet(page=page.name, line=start + place, kind="shell", text=command) for place, command in commands
            ]
        else:
            found.append(Snippet(page=page.name, line=start, kind=language, text=text))
    return found


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, str, list[str], str]]:
    """(line number, language, lines, the last line of text before) of each fenced or indented block."""
    before, at = "", 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            yield at + 2, line[3:].strip(), list(lines[at + 1 : end]), before
            at, before = end + 1, ""
        elif line.startswith("    ") and not before.lstrip().startswith(("-", "1.")):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield at + 1, "", [one[4:] for one in lines[at:end]], before
            at, before = end, ""
        else:
            before = line.strip() or before
            at += 1


def _commands(lines: Sequence[str], where: str) -> list[tuple[int, str]]:
    """The commands of a block by their place, without comments; none where the block holds something else.

    A block is all commands or none: a command that this does not know could not be left out unseen.
    """
    found, others = [], []
    for place, line in enumerate(lines):
        command = re.split(r"(?:^|\s)#", line)[0].strip()
        words = [word for word in command.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if words:
            known = words[0] in COMMANDS or words[0].endswith(("/bin/pip", "/bin/python"))
            (found if known else others).append((place, command))
    if found and others:
        raise ValueError(f"{where}: among commands, '{others[0][1]}' is none of {', '.join(COMMANDS)}")
    return found


class Session:
    """A reader at the terminal, in a folder of their own: `Session(folder).run(snippet)`."""

    def __init__(self, page: Sequence[Snippet]) -> None:
        self._page = page
        self._granted: set[str] = set()
        """Runs that the page took for granted before it made them."""

    def run(self, snippet: Snippet) -> None:
        """Does what the snippet tells; raises where that fails."""
        if snippet.kind == "file":
            Path(snippet.file).parent.mkdir(parents=True, exist_ok=True)
            Path(snippet.file).write_text(f"{snippet.text}\n", encoding="utf-8")
        elif snippet.excuse:
            return
        elif snippet.kind == "python":
            self._grant(snippet.text if "RunDirectory.open" in snippet.text else "")
            Path("snippet.py").write_text(f"{snippet.text}\n", encoding="utf-8")
            runpy.run_path("snippet.py", run_name="__main__")
        elif snippet.kind == "yaml":
            read_yaml(snippet.text)
        elif snippet.kind == "shell":
            self._type(snippet.text)

    def _type(self, command: str) -> None:
        program, *words = shlex.split(command)
        if program == "python":
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
            return
        assert program == "turnwise", f"nothing here runs {program}: teach it, or excuse it with a reason"
        if words[0] in ("eval", "report", "show", "replay", "rescore"):
            self._grant(words[1])
        elif words == ["runs"]:
            self._grant("\n".join(one.text for one in self._page))
        for run in self._granted & set(words) if words[0] == "train" else ():
            shutil.rmtree(run)
            self._granted.remove(run)
        if words[0] in ("train", "eval"):
            words += small_sizes(words)
        sys.stdin = io.StringIO("")  # a person who leaves at once
        code = main(words)
        assert code == 0, f"`{command}` ended with exit code {code}"

    def _grant(self, text: str) -> None:
        """Makes the run that a text reads and the page takes for granted: by the page's command, else by the demo's.

        The demo has 8 steps, and so has the run, each of them small.
        """
        run = re.search(r"runs/[\w-]+", text)
        if run is None or Path(run[0]).is_dir():
            return
        own = [one.text for one in self._page if re.match(rf"turnwise train .*--run {run[0]}( |$)", one.text)]
        command = own[0] if own else f"turnwise train encyclopedia-grpo --run {run[0]}"
        words = shlex.split(command)[1:]
        assert main([*words, *small_sizes(words), *([] if own else ["steps=8"])]) == 0, f"{command} failed"
        self._granted.add(run[0])


def small_sizes(words: Sequence[str]) -> list[str]:
    """The sizes appended to `train` and `eval`, so that minutes become seconds; all else is as printed."""
    given = [word for before, word in pairwise(words[1:]) if before != "--chaos"]
    overrides = [word for word in given if "=" in word and not word.startswith("-")]
    if words[0] == "eval" and Path(words[1]).is_dir():
        held_out = load_run_config(words[1], overrides).evaluate.hold_out  # as few as the training before left out
        tasks = [] if held_out else ["evaluate.tasks=2"]
        return [*tasks, "evaluate.samples_per_task=2"] if "--json" in words else tasks
    config: Config = load_config(words[1], overrides)
    tasks = ["evaluate.hold_out=2"] if config.evaluate.hold_out else ["evaluate.tasks=2"]
    sizes = ["model.name=small", f"model.small={SMALL_MODEL}", "model.autocast=false", *tasks]
    sizes += ["rollout.groups_per_step=2", "rollout.group_size=2", "rollout.turn_tokens=16", "engine.slots=4"]
    if config.sft is not None:
        sizes += ["sft.demonstrations=4"]
    if config.steps:
        sizes += ["steps=1"]
    if config.env.name == "encyclopedia":
        sizes += ["env.args.people=6", "env.args.passages=1"]
    if isinstance(config.env, MixtureSettings):
        own = {"group_size": 2, "turn_tokens": 16, "demonstrations": 2}
        sizes += [f"env.mixture.{name}.{key}={size}" for name in config.env.mixture for key, size in own.items()]
    return sizes


def read_yaml(text: str) -> object:
    """The data of a block of YAML, whose keys must be settings."""
    data = yaml.safe_load(text)
    assert isinstance(data, dict), "a block of YAML is a part of a recipe"
    known = {*Config.model_fields, "extends", "algorithm", "rewards"}  # the last is of env.args, in many environments
    assert set(data) <= known, f"no such section: {sorted(set(data) - known)}"
    return data
