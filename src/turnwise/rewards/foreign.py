"""Rewards of other libraries as ours: functions with TRL's signature, and functions and rubrics of verifiers.

    TRL        f(completions, prompts=..., **columns) -> [score or None]     lists, one entry per episode
    verifiers  f(completion, answer, prompt, state, info, task, parser, ...) -> score     any of these, by name

Invariant: a function is called as its library calls it, with the arguments that it names (all, where it takes any),
for one episode at a time; messages are plain dicts in OpenAI's shape. Neither library is imported.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from turnwise.errors import RewardError
from turnwise.rewards.reward import Episode, Reward, finite
from turnwise.types import Json, Message

ForeignFunction: TypeAlias = Callable[..., object]
Shape: TypeAlias = Literal["answer", "conversation", "text"]
"""What a completion is: the last message alone, all messages from the agent's first on, or the last message's text."""

_GROUP_WORDS = ("prompts", "completions", "answers", "states", "tasks", "infos")


@runtime_checkable
class RubricLike(Protocol):
    """What is read of a verifiers `Rubric`, besides its `parser` and `class_objects`, where it has any."""

    funcs: Sequence[ForeignFunction]
    weights: Sequence[float]


def from_trl(
    function: ForeignFunction, *, shape: Shape = "answer", name: str | None = None, weight: float = 1.0
) -> Reward:
    """A reward function written for TRL: `from_trl(accuracy_reward)`.

    Its columns are the data of the task. None, TRL's word for "does not apply", pays nothing.
    """
    if "completion_ids" in _required(function):
        raise RewardError(f"reward '{_name(function)}' takes completion_ids: rewards see messages here, not tokens")

    def arguments(episode: Episode) -> dict[str, object]:
        prompt, completion = _split(episode, shape)
        columns: dict[str, object] = {key: [value] for key, value in episode.task.data.items()}
        return columns | {"prompts": [prompt], "completions": [completion]}

    def read(scores: object) -> float:
        if not isinstance(scores, Sequence) or isinstance(scores, str) or len(scores) != 1:
            raise RewardError(
                f"reward '{_name(function)}' returned {scores!r:.80} for one completion; a function with TRL's "
                "signature returns a list with a score for each"
            )
        return 0.0 if scores[0] is None else finite(_name(function), scores[0])

    return _make(function, arguments, read, name=name, weight=weight)


def from_verifiers(
    function: ForeignFunction,
    *,
    parser: object = None,
    objects: Mapping[str, object] | None = None,
    shape: Shape = "conversation",
    name: str | None = None,
    weight: float = 1.0,
) -> Reward:
    """A reward function written for verifiers: `from_verifiers(correct_answer, parser=XMLParser(["answer"]))`.

    `objects` are further arguments by name, as a rubric's class objects are. Functions that compare a whole group
    (`completions`, `states`) are refused: episodes end one by one here.
    """
    if plural := [word for word in _GROUP_WORDS if word in inspect.signature(function).parameters]:
        raise RewardError(
            f"reward '{_name(function)}' takes {', '.join(plural)}: it scores a group at once, and episodes end one by "
            "one here; score one completion, or use from_trl for TRL's signature"
        )

    def arguments(episode: Episode) -> dict[str, object]:
        prompt, completion = _split(episode, shape)
        data = episode.task.data
        given: dict[str, object] = {
            "prompt": prompt,
            "completion": completion,
            "answer": _answer(data),
            "task": data.get("task", episode.task.id),
            "info": data.get("info", dict(data)),
            "parser": parser,
        } | dict(objects or {})
        turns = sum(message.role == "assistant" for message in episode.messages)
        return given | {"state": {**given, "turn": turns, "is_completed": True, "env": episode.env}}

    return _make(function, arguments, lambda value: finite(_name(function), value), name=name, weight=weight)


def from_rubric(rubric: RubricLike, *, shape: Shape = "conversation", weight: float = 1.0) -> tuple[Reward, ...]:
    """A verifiers `Rubric`: a reward for each of its functions, at the rubric's weight; weight 0 is shown, not paid."""
    if len(rubric.funcs) != len(rubric.weights):
        raise RewardError(
            f"the rubric has {len(rubric.funcs)} functions and {len(rubric.weights)} weights; give one each"
        )
    parser, objects = getattr(rubric, "parser", None), getattr(rubric, "class_objects", None)
    named = objects if isinstance(objects, Mapping) else {}
    return tuple(
        from_verifiers(function, parser=parser, objects=named, shape=shape, weight=weight * own)
        for function, own in zip(rubric.funcs, rubric.weights, strict=True)
    )


def read_signature(found: object) -> Literal["trl", "verifiers"] | None:
    """Whose signature a function has: TRL's takes `completions`, verifiers' `completion` or `state`; None: neither."""
    if not callable(found) or isinstance(found, type | Reward):
        return None
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    if "completions" in parameters:
        return "trl"
    return "verifiers" if "completion" in parameters or "state" in parameters else None


def _make(
    function: ForeignFunction,
    arguments: Callable[[Episode], dict[str, object]],
    read: Callable[[object], float],
    *,
    name: str | None,
    weight: float,
) -> Reward:
    """A reward that is async where the function is: a sync one runs in a thread, as any sync reward does."""
    accepted = _accepted(function)

    def call(episode: Episode) -> object:
        given = arguments(episode)
        return function(**{key: value for key, value in given.items() if accepted is None or key in accepted})

    async def score_async(episode: Episode) -> float:
        result = call(episode)
        return read(await result if isinstance(result, Awaitable) else result)

    def score(episode: Episode) -> float:
        return read(call(episode))

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return Reward(name=name or _name(function), function=score_async if is_async else score, weight=weight)


def _required(function: ForeignFunction) -> list[str]:
    return [key for key, one in inspect.signature(function).parameters.items() if one.default is one.empty]


def _accepted(function: ForeignFunction) -> frozenset[str] | None:
    """The names of its parameters; None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return frozenset(one.name for one in parameters)


def _split(episode: Episode, shape: Shape) -> tuple[object, object]:
    """The prompt, and what the agent made of it."""
    first = next((i for i, one in enumerate(episode.messages) if one.role == "assistant"), len(episode.messages))
    prompt = [_to_openai(message) for message in episode.messages[:first]]
    if shape == "conversation":
        return prompt, [_to_openai(message) for message in episode.messages[first:]]
    last = next((one for one in reversed(episode.messages) if one.role == "assistant"), None)
    reply = _to_openai(last) if last is not None else {"role": "assistant", "content": ""}
    if shape == "text":
        return "\n".join(str(message["content"]) for message in prompt), reply["content"]
    return prompt, [reply]


def _to_openai(message: Message) -> dict[str, Json]:
    """Thinking stands in its tags, where these libraries' functions look for it."""
    thought = f"<think>\n{message.thinking}\n</think>\n" if message.thinking else ""
    written: dict[str, Json] = {"role": message.role, "content": thought + message.content}
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for key, value in (("tool_call_id", message.tool_call_id), ("name", message.name)):
        if value is not None:
            written[key] = value
    return written


def _answer(data: Mapping[str, Json]) -> Json:
    """verifiers has one gold answer: `answer`, or the first of `answers`."""
    if "answer" in data:
        return data["answer"]
    answers = data.get("answers")
    return answers[0] if isinstance(answers, list | tuple) and answers else ""


def _name(function: ForeignFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
