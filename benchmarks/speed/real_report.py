"""The report of a real run: the seconds of a step by what they were spent on, beside TRL's on the same questions.

Invariant: a number is a median over the steps after the warm-up, with the least and the most beside it; the accounts
that are shown and "all else" are, in each step, the whole of it.
"""

import math
from collections.abc import Mapping, Sequence

from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.jobs import JobResult
from benchmarks.harness.report import Report
from benchmarks.harness.results import markdown_table
from benchmarks.speed.real_run import OURS, TRL, RealRun
from benchmarks.speed.report import MedianRange

PART = "real-run"
ACCOUNTS = {
    "environment": ("environment (search, rewards)", ("environment", "tool_wait")),
    "render": ("rendering and tokenising", ("render",)),
    "prefill": ("prefill", ("prefill",)),
    "decode": ("decode", ("decode",)),
    "tail_idle": ("decode, of slots without a turn", ("tail_idle",)),
    "learner": ("update, with the logprobs before it", ("logprobs", "update")),
    "store": ("trajectories and metrics to disk", ("store",)),
}
"""The rows of a step, each with its label and the ledger's accounts that it sums."""
_AFTER = ("learner", "store")
"""Those of them that come after the episodes."""
_Columns = Mapping[str, list[float]]


def report_real_run(run: RealRun, results: JobResults) -> Report:
    """From the two jobs' results to what is published."""
    ours, peer = results[OURS], results.get(TRL)
    own = _measure_ours(ours)
    theirs = None if peer is None or "failure" in peer else _measure_trl(peer)
    published: dict[str, float] = {}
    for side, measured in {"turnwise": own, "trl": theirs or {}}.items():
        for name, found in measured.items():
            published |= found.flat(f"{PART}/{side}/{name}")
    table = _write_table(own, theirs, why=_describe_missing(peer))
    if theirs is not None:
        assert theirs["episodes"] == own["episodes"], "both sides play as many episodes"
        ratio = theirs["step_seconds"].over(own["step_seconds"])
        published |= ratio.flat(f"{PART}/ratio_trl")
        table += f"\n\nA step takes TRL {ratio.show(1)} times as long."
    about = {"device": run.about, "recipe": run.title, "model": run.model}
    about |= {"settings": " ".join(one for one in run.overrides if not one.startswith(("model.name", "env.args")))}
    about |= {} if peer is None or "versions" not in peer else {"peer/trl": str(peer["versions"])}
    parts = {"setting": _describe_setting(run, ours), PART: table}
    return Report(results=published, parts=parts, about=about)


def _describe_missing(peer: JobResult | None) -> str:
    return "not measured: give `--peer`" if peer is None else f"did not run: {peer.get('failure')}"


def _measure_ours(found: JobResult) -> dict[str, MedianRange]:
    """Medians of the run's columns, accounts summed to rows."""
    columns = {name: _numbers(value) for name, value in found.items() if isinstance(value, list)}
    rows = {
        row: _add([columns[f"{account}_seconds"] for account in accounts]) for row, (_, accounts) in ACCOUNTS.items()
    }
    rows["else"] = [
        whole - shown for whole, shown in zip(columns["step_seconds"], _add(list(rows.values())), strict=True)
    ]
    shared = _shared(columns, searches=columns["searches"])
    seconds = {f"{row}_seconds": values for row, values in rows.items()}
    return _medians({**shared, **seconds, "trained_tokens": columns["trained_tokens"]})


def _measure_trl(found: JobResult) -> dict[str, MedianRange]:
    columns = {name: _numbers(value) for name, value in found.items() if isinstance(value, list)}
    steps, episodes = len(columns["step_seconds"]), _numbers(found["episodes"])
    columns["episodes"] = episodes * steps
    searches = _divide(columns["searches"], columns["episodes"])
    learner = {"learner_seconds": columns["update_seconds"], "trained_tokens": columns["tokens"]}
    return _medians({**_shared(columns, searches=searches), **learner})


def _shared(columns: _Columns, *, searches: list[float]) -> dict[str, list[float]]:
    """What both sides have: by these a reader sees that they did the same work."""
    sampled, episodes = columns["sampled_tokens"], columns["episodes"]
    return {
        "step_seconds": columns["step_seconds"],
        "rollout_seconds": columns["rollout_seconds"],
        "episodes": episodes,
        "sampled_tokens": sampled,
        "sampled_tokens_per_episode": _divide(sampled, episodes),
        "searches_per_episode": searches,
        "sampled_tokens_per_second": _divide(sampled, columns["rollout_seconds"]),
    }


def _write_table(own: Mapping[str, MedianRange], theirs: Mapping[str, MedianRange] | None, *, why: str) -> str:
    rows = {"step_seconds": ("whole step, seconds", 2), "rollout_seconds": ("of it episodes", 2)}
    rows |= {f"{name}_seconds": (f"– {label}", 2) for name, (label, _) in ACCOUNTS.items() if name not in _AFTER}
    rows |= {f"{name}_seconds": (f"of it {ACCOUNTS[name][0]}", 2) for name in _AFTER}
    rows |= {
        "else_seconds": ("all else", 2),
        "episodes": ("episodes", 0),
        "sampled_tokens_per_episode": ("sampled tokens an episode", 1),
        "searches_per_episode": ("searches an episode", 2),
        "sampled_tokens": ("sampled tokens", 0),
        "trained_tokens": ("tokens of the rows that are trained on", 0),
        "sampled_tokens_per_second": ("sampled tokens a second of the episodes", 0),
    }
    lines = []
    for name, (label, digits) in rows.items():
        cells = ["" if side is None or name not in side else side[name].show(digits) for side in (own, theirs)]
        lines.append([label, cells[0], why if theirs is None and name == "step_seconds" else cells[1]])
    return markdown_table(["a step", "turnwise", "TRL GRPOTrainer"], lines)


def _describe_setting(run: RealRun, ours: JobResult) -> str:
    steps, sft = _numbers(ours["steps"]), run.config.sft
    if sft is None:
        started = "no cold start"
    else:
        started = f"a cold start of {sft.demonstrations:,} demonstrations" if sft.chats is None else "a cold start"
    return (
        f"Device: {run.about}; recipe: `{run.title}`; model: {run.model}; {started}; steps "
        f"{steps[0]:.0f} to {steps[-1]:.0f}. {_describe_forward(run, ours)}."
    )


def _describe_forward(run: RealRun, ours: JobResult) -> str:
    """Which forward sampled, as the run told it."""
    if run.config.engine.kind != "local":
        return f"The engine is {run.config.engine.kind}"
    if ours["slow_reason"] is not None:
        return f"The model's own forward sampled: {ours['slow_reason']}"
    return "The engine's fused forward sampled"


def _medians(columns: Mapping[str, list[float]]) -> dict[str, MedianRange]:
    return {name: MedianRange.of(values) for name, values in columns.items()}


def _add(columns: Sequence[list[float]]) -> list[float]:
    return [math.fsum(step) for step in zip(*columns, strict=True)]


def _divide(amounts: list[float], by: list[float]) -> list[float]:
    return [amount / one for amount, one in zip(amounts, by, strict=True)]


def _numbers(value: object) -> list[float]:
    numbers: list[float] = []
    for one in value if isinstance(value, list) else [value]:
        assert isinstance(one, int | float), one
        numbers.append(float(one))
    return numbers
