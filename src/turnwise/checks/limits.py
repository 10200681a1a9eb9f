"""Whether episodes fit their limits: turns that end by themselves, contexts that do not fill, room for the expert."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import Finish, StopReason, Trajectory

_ALL = 0.95
_MANY = 0.5
_MIN_TURNS = 16
_CUT: dict[StopReason, str] = {
    StopReason.MAX_TURNS: "rollout.max_turns",
    StopReason.CONTEXT_FULL: "rollout.context_tokens, or the model's context,",
    StopReason.TOKEN_BUDGET: "rollout.episode_tokens",
    StopReason.TIMEOUT: "rollout.seconds",
}


def check_stops(trajectories: Sequence[Trajectory], stop_ids: Sequence[int] | None) -> list[Diagnosis]:
    """A diagnosis where (nearly) no turn ends by a stop id: the model never learnt it, or it is not the model's own.

    Without `stop_ids`, a turn that finished by itself counts as ended.
    """
    turns = [turn for t in trajectories for turn in t.turns]
    cut = sum(turn.finish is Finish.LENGTH for turn in turns)
    if len(turns) < _MIN_TURNS or cut < _ALL * len(turns):
        return []
    ended = sum(turn.finish is Finish.STOP for turn in turns)
    return [
        Diagnosis(
            kind="stop_never_sampled",
            cause="nearly every turn is cut off by its limit of tokens: the model does not end its turns",
            advice="raise rollout.turn_tokens, teach the format with demonstrations (sft), or check that the chat "
            f"template's end of turn is the model's own{_name(stop_ids)}",
            evidence={"turns cut": float(cut), "turns ended": float(ended), "of": float(len(turns))},
        )
    ]


def check_cuts(trajectories: Sequence[Trajectory]) -> list[Diagnosis]:
    """A diagnosis where half of the episodes or more are cut off by one limit of the rollout."""
    found = []
    for reason, setting in _CUT.items():
        cut = sum(t.stop is reason for t in trajectories)
        share = _MANY if reason is StopReason.CONTEXT_FULL else _ALL
        if len(trajectories) >= 8 and cut >= share * len(trajectories):
            found.append(
                Diagnosis(
                    kind="context_fills" if reason is StopReason.CONTEXT_FULL else "episodes_cut",
                    cause=f"{cut / len(trajectories):.0%} of episodes are cut off by {setting} before they are over",
                    advice=f"raise {setting.partition(',')[0]}, or give the task a shorter form",
                    evidence={"episodes cut": float(cut), "of": float(len(trajectories))},
                )
            )
    return found


def check_expert_fits(demonstrations: Sequence[Trajectory]) -> list[Diagnosis]:
    """A diagnosis where the expert's own episodes do not fit the limits: no policy can then do as well."""
    if not demonstrations:
        return []
    turns = [turn for t in demonstrations for turn in t.turns]
    cut = sum(turn.finish is Finish.LENGTH for turn in turns)
    ended = sum(t.stop in _CUT for t in demonstrations)
    found = []
    if turns and cut >= 0.5 * len(turns):
        figures = {"expert turns cut": float(cut), "of": float(len(turns))}
        cause, advice = "the expert's turns are longer than rollout.turn_tokens", "raise rollout.turn_tokens"
        found.append(Diagnosis(kind="turns_too_short", cause=cause, advice=advice, evidence=figures))
    if ended >= 0.5 * len(demonstrations):
        reasons = sorted({_CUT[t.stop].partition(",")[0] for t in demonstrations if t.stop in _CUT})
        found.append(
            Diagnosis(
                kind="episodes_too_short",
                cause=f"the expert's episodes do not fit {' and '.join(reasons)}",
                advice=f"raise {' and '.join(reasons)}",
                evidence={"expert episodes cut": float(ended), "of": float(len(demonstrations))},
            )
        )
    return found


def _name(stop_ids: Sequence[int] | None) -> str:
    return f" (stop ids: {', '.join(map(str, stop_ids))})" if stop_ids else ""
