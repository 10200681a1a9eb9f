"""The report of `turnwise bench speed`: a table for every comparison, and the same numbers flat.

Invariant: a number is a median, with the least and the most beside it where there are several; a ratio is one of
medians, and how much faster we are. What was not measured is named, with the reason.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.jobs import JobResult
from benchmarks.harness.report import Report
from benchmarks.harness.results import markdown_table, show_number
from benchmarks.speed.growth import LAYOUTS, ONE_ROW, ROW_PER_TURN, fit_exponent
from benchmarks.speed.process import THREADS
from benchmarks.speed.variant import COMPILED, FULL_LOGITS, IN_GROUPS, OURS, Variant

FITTED_FROM = 4
"""Turns from which growth is fitted: below, an episode's fixed cost hides that of a turn."""
_STEP_ROWS = {OURS: "turnwise", "trl": "TRL GRPOTrainer"}
_SAMPLING_ROWS = {
    OURS: "turnwise",
    "generate": "transformers `generate`",
    "continuous": "transformers continuous batching",
    "vllm": "vLLM",
}
_TURN_ROWS = {OURS: "turnwise", "generate": "loop around `generate`"}
_UPDATE_ROWS = {
    OURS: "turnwise",
    COMPILED: "turnwise, compiled",
    IN_GROUPS: "turnwise, groups with one prompt each",
    FULL_LOGITS: "padded, full logits",
}
_LAYOUT_ROWS = {ONE_ROW: "one row for all turns", ROW_PER_TURN: "one row per turn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianRange:
    """`MedianRange(median=3.1, low=3.0, high=3.4)`."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "MedianRange":
        return cls(median=statistics.median(values), low=min(values), high=max(values))

    def per(self, amount: float) -> "MedianRange":
        """The rate of an amount, where this is seconds: the slowest repeat gives the low."""
        return MedianRange(median=amount / self.median, low=amount / self.high, high=amount / self.low)

    def over(self, other: "MedianRange") -> "MedianRange":
        """The ratio of medians; low is this one's least over the other's most, high the reverse."""
        return MedianRange(median=self.median / other.median, low=self.low / other.high, high=self.high / other.low)

    def show(self, digits: int) -> str:
        """`3.10 (3.00–3.40)`."""
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"

    def flat(self, name: str) -> dict[str, float]:
        return {name: self.median, f"{name}/min": self.low, f"{name}/max": self.high}


def report(variant: Variant, results: JobResults) -> Report:
    """From the jobs' results to what is published."""
    published: dict[str, float] = {}
    parts = {"setting": _describe_setting(variant)}
    sections = {
        "sampling": _report_sampling,
        "turns": _report_turns,
        "update": _report_update,
        "growth": _report_growth,
    }
    if variant.steps is not None:
        sections = {"steps": _report_steps, **sections}
    for name, write in sections.items():
        parts[name], found = write(variant, results)
        published |= {f"{name}/{key}": value for key, value in found.items()}
    versions = {name: str(side["versions"]) for name, side in _peers(results) if "versions" in side}
    about = {
        **variant.describe(),
        "threads": str(THREADS),
        **{f"peer/{name}": version for name, version in versions.items()},
    }
    return Report(results=published, parts=parts, about=about)


def _describe_setting(variant: Variant) -> str:
    model = {"tiny": "a random Qwen2 of 6.8 million parameters", "smollm2": "random weights of SmolLM2-135M's shape"}
    named = model.get(variant.model, "the weights that `--model` named")
    return f"Device: {variant.about}; model: {named}, {variant.dtype}; {THREADS} threads."


def _report_steps(variant: Variant, results: JobResults) -> tuple[str, dict[str, float]]:
    """Whole training steps, ours and TRL's, over all rounds."""
    published: dict[str, float] = {}
    rows = []
    ours = _collect(results, f"steps/{OURS}/")
    assert ours is not None
    for side, label in _STEP_ROWS.items():
        found = _collect(results, f"steps/{side}/")
        if found is None:
            rows.append([label, "not measured: give `--peer`", *[""] * 5])
            continue
        seconds = {name: MedianRange.of(found[f"{name}_seconds"]) for name in ("step", "rollout", "update")}
        pace = seconds["step"].per(found["trajectories"][0])
        published |= pace.flat(f"{side}/trajectories_per_second")
        for name, timing in seconds.items():
            published |= timing.flat(f"{side}/{name}_seconds")
        tokens = {name: found[name][0] for name in ("prompt_tokens", "completion_tokens", "sampled_tokens")}
        assert tokens == {name: ours[name][0] for name in tokens}, f"{side} did other work: {tokens}"
        published |= {f"{side}/{name}": value for name, value in tokens.items()}
        published[f"{side}/peak_mib"] = max(found["peak_mib"])
        cells = [pace.show(2), seconds["step"].show(2)]
        cells += [f"{seconds[name].median:.2f}" for name in ("rollout", "update")]
        cells.append(" + ".join(f"{tokens[name]:.0f}" for name in ("prompt_tokens", "completion_tokens")))
        rows.append([label, *cells, "" if side == OURS else _show_ratio(published, side, found, ours)])
    header = ["", "trajectories/s", "seconds a step", "of it sampling", "of it update", "tokens", "we are faster by"]
    return markdown_table(header, rows), published


def _show_ratio(published: dict[str, float], side: str, found: "_Columns", ours: "_Columns") -> str:
    """How many of our steps theirs takes: at the least, their fastest beside our slowest."""
    ratio = MedianRange.of(found["step_seconds"]).over(MedianRange.of(ours["step_seconds"]))
    published |= ratio.flat(f"ratio_{side}")
    return f"{ratio.show(1)} ×"


def _report_sampling(variant: Variant, results: JobResults) -> tuple[str, dict[str, float]]:
    """Tokens a second, decoding alone and prompts included, and how the engine's logprobs agree with the model's."""
    rows_sampled, tokens = variant.sampling["rows"], variant.sampling["tokens"]
    published: dict[str, float] = {}
    rows = []
    for side, label in _SAMPLING_ROWS.items():
        found = results.get(f"sampling/{side}")
        if found is None or "failure" in found:
            why = "not installed" if found is None else f"did not run: {found['failure']}"
            rows.append([label, why, "", "", ""])
            continue
        first, whole = _numbers(found, "first_seconds"), _numbers(found, "whole_seconds")
        # Prefill is timed apart, so its median is what all repeats have taken off.
        decoding = MedianRange.of([seconds - statistics.median(first) for seconds in whole])
        pace = {
            "decode": decoding.per(rows_sampled * (tokens - 1)),
            "overall": MedianRange.of(whole).per(rows_sampled * tokens),
        }
        for name, rate in pace.items():
            published |= rate.flat(f"{side}/{name}_tokens_per_second")
        cells = [pace[name].show(0) for name in ("decode", "overall")]
        for name, rate in pace.items():
            if side == OURS:
                cells.append("")
                continue
            ratio = published[f"{OURS}/{name}_tokens_per_second"] / rate.median
            published[f"ratio_{side}/{name}"] = ratio
            cells.append(f"{ratio:.1f} ×")
        rows.append([label, *cells])
    header = ["", "decoded tokens/s", "tokens/s, prompts included", "faster decoding by", "faster overall by"]
    own = results[f"sampling/{OURS}"]
    for name in ("counted_decode_tokens_per_second", *_agreement(own)):
        published[f"{OURS}/{name}"] = _number(own, name)
    return f"{markdown_table(header, rows)}\n\n{_describe_agreement(own)}", published


def _agreement(own: JobResult) -> list[str]:
    return [name for name in own if "_minus_" in name]


def _describe_agreement(own: JobResult) -> str:
    """The engine against the model itself."""
    sentence = (
        "Largest difference between the engine's logprobs and those of the model's own forward pass over the same "
        f"rows, as a share of the largest logprob: {_number(own, 'engine_minus_model'):.1e}."
    )
    if "engine_minus_float32" in own:
        sentence += (
            f" Against the same weights in float32: {_number(own, 'engine_minus_float32'):.1e} for the engine, "
            f"{_number(own, 'model_minus_float32'):.1e} for the model's own forward pass, which is its rounding."
        )
    return sentence


def _report_turns(variant: Variant, results: JobResults) -> tuple[str, dict[str, float]]:
    """Episodes a second, of turns that all are as long, and of turns that are not."""
    published: dict[str, float] = {}
    rows = []
    for side, label in _TURN_ROWS.items():
        cells = []
        for work, prefix in {"turns": "", "uneven-turns": "uneven/"}.items():
            found = results[f"{work}/{side}"]
            pace = MedianRange.of(_numbers(found, "seconds")).per(_number(found, "episodes"))
            published |= pace.flat(f"{prefix}{side}/episodes_per_second")
            cells += [pace.show(1), ""]
            if side != OURS:
                ratio = published[f"{prefix}{OURS}/episodes_per_second"] / pace.median
                published[f"{prefix}ratio_{side}"] = ratio
                cells[-1] = f"{ratio:.1f} ×"
        rows.append([label, *cells])
    turn, jitter = variant.turns.turn, variant.turn_jitter
    header = ["", f"episodes/s, turns of {turn} tokens", "we are faster by"]
    header += [f"turns of {turn - jitter} to {turn + jitter}", "we are faster by"]
    return markdown_table(header, rows), published


def _report_update(variant: Variant, results: JobResults) -> tuple[str, dict[str, float]]:
    """Tokens a second through an update, and the most memory taken."""
    names = ("tokens_per_second", "peak_gib")
    found = {
        method: {name: _number(results[f"update/{method}"], name) for name in names}
        for method in variant.update_methods
    }
    plain = found[FULL_LOGITS]
    published: dict[str, float] = {}
    rows = []
    for method, numbers in found.items():
        published |= {f"{method}/{name}": number for name, number in numbers.items()}
        cells = [f"{numbers['tokens_per_second']:,.0f}", f"{numbers['peak_gib']:.2f}", "", ""]
        if method != FULL_LOGITS:
            published[f"ratio_{method}"] = numbers["tokens_per_second"] / plain["tokens_per_second"]
            published[f"memory_ratio_{method}"] = plain["peak_gib"] / numbers["peak_gib"]
            cells[2:] = [f"{published[f'{name}_{method}']:.2f} ×" for name in ("ratio", "memory_ratio")]
        rows.append([_UPDATE_ROWS[method], *cells])
    header = ["", "tokens/s", "peak memory, GiB", "faster than full logits by", "less memory by"]
    return markdown_table(header, rows), published


def _report_growth(variant: Variant, results: JobResults) -> tuple[str, dict[str, float]]:
    """The cost of one trajectory at each number of turns, and the exponent that fits it."""
    found = results["growth"]
    turns = _numbers(found, "turns")
    columns = {"rollout_seconds": _numbers(found, "rollout_seconds")}
    for layout in LAYOUTS:
        laid_out = found[layout]
        assert isinstance(laid_out, Mapping)
        columns |= {f"{layout}/{name}": _numbers(laid_out, name) for name in ("tokens", "update_seconds")}
    published: dict[str, float] = {}
    for name, column in columns.items():
        published |= {f"{name}/{number:g}": value for number, value in zip(turns, column, strict=True)}
        fitted = [pair for pair in zip(turns, column, strict=True) if pair[0] >= FITTED_FROM]
        published[f"{name}/exponent"] = fit_exponent([x for x, _ in fitted], [y for _, y in fitted])
    layouts = {
        f"{layout}/{name}": label for layout, label in _LAYOUT_ROWS.items() for name in ("tokens", "update_seconds")
    }
    labels = {"rollout_seconds": "rollout, ms"}
    for name, label in layouts.items():
        labels[name] = f"{label}: {'tokens' if name.endswith('tokens') else 'update, ms'}"
    rows = []
    for name, label in labels.items():
        scale, digits = (1, 0) if name.endswith("tokens") else (1000, 1)
        cells = [show_number(scale * value, digits) for value in columns[name]]
        rows.append([label, *cells, f"{published[f'{name}/exponent']:.2f}"])
    header = ["one trajectory, by its turns", *(f"{number:g}" for number in turns), "exponent"]
    return markdown_table(header, rows), published


_Columns = Mapping[str, list[float]]


def _collect(results: JobResults, prefix: str) -> _Columns | None:
    """The numbers of all rounds of a side, joined by name; None where it was not measured."""
    rounds = [result for name, result in results.items() if name.startswith(prefix)]
    if not rounds:
        return None
    names = [name for name, value in rounds[0].items() if not isinstance(value, str)]
    return {name: [value for one in rounds for value in _as_numbers(one[name])] for name in names}


def _peers(results: JobResults) -> Iterable[tuple[str, JobResult]]:
    """The results of peers, once each."""
    for name, label in {"steps/trl/round-0": "trl", "sampling/vllm": "vllm"}.items():
        if name in results:
            yield label, results[name]


def _numbers(result: Mapping[str, object], name: str) -> list[float]:
    return _as_numbers(result[name])


def _number(result: Mapping[str, object], name: str) -> float:
    (value,) = _as_numbers(result[name])
    return value


def _as_numbers(value: object) -> list[float]:
    numbers: list[float] = []
    for one in value if isinstance(value, list) else [value]:
        assert isinstance(one, int | float), one
        numbers.append(float(one))
    return numbers
