"""What `turnwise bench speed` says: a table for every comparison, and the same numbers flat.

Invariant: a number is a median, with the least and the most beside it where there are several; a ratio is one of
medians, and how much faster we are. What was not measured is said to be so, and why.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.benchmark import Results
from benchmarks.harness.jobs import Figures
from benchmarks.harness.report import Report
from benchmarks.harness.results import markdown_table, show_number
from benchmarks.speed.growth import LAYOUTS, ONE_ROW, ROW_PER_TURN, fit_exponent
from benchmarks.speed.process import THREADS
from benchmarks.speed.variant import COMPILED, FULL_LOGITS, IN_GROUPS, OURS, Edition

FITTED_FROM = 4
"""Turns from which growth is fitted: before, what an episode costs at all hides what a turn does."""
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
class Spread:
    """`Spread(median=3.1, least=3.0, most=3.4)`."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median=statistics.median(values), least=min(values), most=max(values))

    def per(self, amount: float) -> "Spread":
        """How much of an amount a second, where this is seconds: the slowest is the least."""
        return Spread(median=amount / self.median, least=amount / self.most, most=amount / self.least)

    def show(self, digits: int) -> str:
        """`3.10 (3.00–3.40)`."""
        if self.least == self.most:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}–{self.most:,.{digits}f})"

    def flat(self, name: str) -> dict[str, float]:
        return {name: self.median, f"{name}/min": self.least, f"{name}/max": self.most}


def report(edition: Edition, results: Results) -> Report:
    """From what the jobs measured to what is published."""
    figures: dict[str, float] = {}
    parts = {"setting": _say_setting(edition)}
    chapters = {"sampling": _tell_sampling, "turns": _tell_turns, "update": _tell_update, "growth": _tell_growth}
    if edition.steps is not None:
        chapters = {"steps": _tell_steps, **chapters}
    for name, tell in chapters.items():
        parts[name], found = tell(edition, results)
        figures |= {f"{name}/{key}": value for key, value in found.items()}
    versions = {name: str(side["versions"]) for name, side in _peers(results) if "versions" in side}
    about = {**edition.describe(), "threads": str(THREADS), **{f"peer/{name}": said for name, said in versions.items()}}
    return Report(figures=figures, parts=parts, about=about)


def _say_setting(edition: Edition) -> str:
    model = {"tiny": "a random Qwen2 of 6.8 million parameters", "smollm2": "random weights of SmolLM2-135M's shape"}
    named = model.get(edition.model, "the weights that `--model` named")
    return f"Device: {edition.about}; model: {named}, {edition.dtype}; {THREADS} threads."


def _tell_steps(edition: Edition, results: Results) -> tuple[str, dict[str, float]]:
    """Whole training steps, ours and TRL's, over all rounds."""
    figures: dict[str, float] = {}
    rows = []
    ours = _collect(results, f"steps/{OURS}/")
    assert ours is not None
    for side, label in _STEP_ROWS.items():
        found = _collect(results, f"steps/{side}/")
        if found is None:
            rows.append([label, "not measured: give `--peer`", *[""] * 5])
            continue
        seconds = {name: Spread.of(found[f"{name}_seconds"]) for name in ("step", "rollout", "update")}
        pace = seconds["step"].per(found["trajectories"][0])
        figures |= pace.flat(f"{side}/trajectories_per_second")
        for name, spread in seconds.items():
            figures |= spread.flat(f"{side}/{name}_seconds")
        tokens = {name: found[name][0] for name in ("prompt_tokens", "completion_tokens", "sampled_tokens")}
        assert tokens == {name: ours[name][0] for name in tokens}, f"{side} did other work: {tokens}"
        figures |= {f"{side}/{name}": value for name, value in tokens.items()}
        figures[f"{side}/peak_mib"] = max(found["peak_mib"])
        cells = [pace.show(2), seconds["step"].show(2)]
        cells += [f"{seconds[name].median:.2f}" for name in ("rollout", "update")]
        cells.append(" + ".join(f"{tokens[name]:.0f}" for name in ("prompt_tokens", "completion_tokens")))
        rows.append([label, *cells, "" if side == OURS else _show_ratio(figures, side, found, ours)])
    header = ["", "trajectories/s", "seconds a step", "of it sampling", "of it update", "tokens", "we are faster by"]
    return markdown_table(header, rows), figures


def _show_ratio(figures: dict[str, float], side: str, found: "_Columns", ours: "_Columns") -> str:
    """Of medians; the least is our slowest step beside their fastest, the most the other way round."""
    theirs, own = Spread.of(found["step_seconds"]), Spread.of(ours["step_seconds"])
    ratio = Spread(median=theirs.median / own.median, least=theirs.least / own.most, most=theirs.most / own.least)
    figures |= ratio.flat(f"ratio_{side}")
    return f"{ratio.show(1)} ×"


def _tell_sampling(edition: Edition, results: Results) -> tuple[str, dict[str, float]]:
    """Tokens a second, decoding alone and prompts included, and how the engine's logprobs agree with the model's."""
    rows_sampled, tokens = edition.sampling["rows"], edition.sampling["tokens"]
    figures: dict[str, float] = {}
    rows = []
    for side, label in _SAMPLING_ROWS.items():
        found = results.get(f"sampling/{side}")
        if found is None or "failure" in found:
            why = "not installed" if found is None else f"did not run: {found['failure']}"
            rows.append([label, why, "", "", ""])
            continue
        first, whole = _numbers(found, "first_seconds"), _numbers(found, "whole_seconds")
        # Prefill is timed apart, so its median is what all repeats have taken off.
        decoding = Spread.of([seconds - statistics.median(first) for seconds in whole])
        pace = {
            "decode": decoding.per(rows_sampled * (tokens - 1)),
            "overall": Spread.of(whole).per(rows_sampled * tokens),
        }
        for name, spread in pace.items():
            figures |= spread.flat(f"{side}/{name}_tokens_per_second")
        cells = [pace[name].show(0) for name in ("decode", "overall")]
        for name, spread in pace.items():
            if side == OURS:
                cells.append("")
                continue
            ratio = figures[f"{OURS}/{name}_tokens_per_second"] / spread.median
            figures[f"ratio_{side}/{name}"] = ratio
            cells.append(f"{ratio:.1f} ×")
        rows.append([label, *cells])
    header = ["", "decoded tokens/s", "tokens/s, prompts included", "faster decoding by", "faster overall by"]
    own = results[f"sampling/{OURS}"]
    for name in ("counted_decode_tokens_per_second", *_agreement(own)):
        figures[f"{OURS}/{name}"] = _number(own, name)
    return f"{markdown_table(header, rows)}\n\n{_say_agreement(own)}", figures


def _agreement(own: Figures) -> list[str]:
    return [name for name in own if "_minus_" in name]


def _say_agreement(own: Figures) -> str:
    """The engine against the model itself."""
    said = (
        "Largest difference between the engine's logprobs and those of the model's own forward pass over the same "
        f"rows, as a share of the largest logprob: {_number(own, 'engine_minus_model'):.1e}."
    )
    if "engine_minus_float32" in own:
        said += (
            f" Against the same weights in float32: {_number(own, 'engine_minus_float32'):.1e} for the engine, "
            f"{_number(own, 'model_minus_float32'):.1e} for the model's own forward pass, which is its rounding."
        )
    return said


def _tell_turns(edition: Edition, results: Results) -> tuple[str, dict[str, float]]:
    """Episodes a second, of turns that all are as long, and of turns that are not."""
    figures: dict[str, float] = {}
    rows = []
    for side, label in _TURN_ROWS.items():
        cells = []
        for work, place in {"turns": "", "uneven-turns": "uneven/"}.items():
            found = results[f"{work}/{side}"]
            pace = Spread.of(_numbers(found, "seconds")).per(_number(found, "episodes"))
            figures |= pace.flat(f"{place}{side}/episodes_per_second")
            cells += [pace.show(1), ""]
            if side != OURS:
                ratio = figures[f"{place}{OURS}/episodes_per_second"] / pace.median
                figures[f"{place}ratio_{side}"] = ratio
                cells[-1] = f"{ratio:.1f} ×"
        rows.append([label, *cells])
    turn, spread = edition.turns.turn, edition.turns_spread
    header = ["", f"episodes/s, turns of {turn} tokens", "we are faster by"]
    header += [f"turns of {turn - spread} to {turn + spread}", "we are faster by"]
    return markdown_table(header, rows), figures


def _tell_update(edition: Edition, results: Results) -> tuple[str, dict[str, float]]:
    """Tokens a second through an update, and the most memory taken."""
    names = ("tokens_per_second", "peak_gib")
    found = {
        variant: {name: _number(results[f"update/{variant}"], name) for name in names}
        for variant in edition.update_variants
    }
    plain = found[FULL_LOGITS]
    figures: dict[str, float] = {}
    rows = []
    for variant, numbers in found.items():
        figures |= {f"{variant}/{name}": number for name, number in numbers.items()}
        cells = [f"{numbers['tokens_per_second']:,.0f}", f"{numbers['peak_gib']:.2f}", "", ""]
        if variant != FULL_LOGITS:
            figures[f"ratio_{variant}"] = numbers["tokens_per_second"] / plain["tokens_per_second"]
            figures[f"memory_ratio_{variant}"] = plain["peak_gib"] / numbers["peak_gib"]
            cells[2:] = [f"{figures[f'{name}_{variant}']:.2f} ×" for name in ("ratio", "memory_ratio")]
        rows.append([_UPDATE_ROWS[variant], *cells])
    header = ["", "tokens/s", "peak memory, GiB", "faster than full logits by", "less memory by"]
    return markdown_table(header, rows), figures


def _tell_growth(edition: Edition, results: Results) -> tuple[str, dict[str, float]]:
    """What one trajectory costs at each number of turns, and the exponent that fits it."""
    found = results["growth"]
    turns = _numbers(found, "turns")
    columns = {"rollout_seconds": _numbers(found, "rollout_seconds")}
    for layout in LAYOUTS:
        laid_out = found[layout]
        assert isinstance(laid_out, Mapping)
        columns |= {f"{layout}/{name}": _numbers(laid_out, name) for name in ("tokens", "update_seconds")}
    figures: dict[str, float] = {}
    for name, column in columns.items():
        figures |= {f"{name}/{number:g}": value for number, value in zip(turns, column, strict=True)}
        fitted = [pair for pair in zip(turns, column, strict=True) if pair[0] >= FITTED_FROM]
        figures[f"{name}/exponent"] = fit_exponent([x for x, _ in fitted], [y for _, y in fitted])
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
        rows.append([label, *cells, f"{figures[f'{name}/exponent']:.2f}"])
    header = ["one trajectory, by its turns", *(f"{number:g}" for number in turns), "exponent"]
    return markdown_table(header, rows), figures


_Columns = Mapping[str, list[float]]


def _collect(results: Results, prefix: str) -> _Columns | None:
    """The numbers of all rounds of a side, joined by name; None where it was not measured."""
    rounds = [figures for name, figures in results.items() if name.startswith(prefix)]
    if not rounds:
        return None
    names = [name for name, value in rounds[0].items() if not isinstance(value, str)]
    return {name: [value for one in rounds for value in _as_numbers(one[name])] for name in names}


def _peers(results: Results) -> Iterable[tuple[str, Figures]]:
    """Those that ran elsewhere, once each."""
    for name, label in {"steps/trl/round-0": "trl", "sampling/vllm": "vllm"}.items():
        if name in results:
            yield label, results[name]


def _numbers(figures: Mapping[str, object], name: str) -> list[float]:
    return _as_numbers(figures[name])


def _number(figures: Mapping[str, object], name: str) -> float:
    (value,) = _as_numbers(figures[name])
    return value


def _as_numbers(value: object) -> list[float]:
    numbers: list[float] = []
    for one in value if isinstance(value, list) else [value]:
        assert isinstance(one, int | float), one
        numbers.append(float(one))
    return numbers
