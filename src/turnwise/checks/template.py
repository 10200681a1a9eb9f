"""Whether the chat template suits the task: tools in the prompt, calls that can be read back, a history that stays.

Everything is found by rendering small conversations; no model is needed.
"""

import json
from collections.abc import Mapping, Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.envs.probes import sample_call
from turnwise.render.base import Render
from turnwise.types import Message, ToolSpec

_OPENING, _REPLY, _NEXT, _THOUGHT = "qzopeningzq", "qzreplyzq", "qznextzq", "qzthoughtzq"


def check_tools(render: Render, tools: Sequence[ToolSpec], opening: Sequence[Message]) -> list[Diagnosis]:
    """Diagnoses where the model is not told of a tool, or cannot call one in a way that is understood."""
    if not tools:
        return []
    prompt = render.decode(render.start(opening or [Message(role="user", content=_OPENING)], tools))
    words = {tool.name: [tool.name, *_parameters(tool)] for tool in tools}
    missing = [name for name, told in words.items() if any(word not in prompt for word in told)]
    found = []
    if missing:
        found.append(
            Diagnosis(
                kind="tools_not_in_prompt",
                cause=f"the prompt does not tell the model of {_list(missing)} and its parameters",
                advice="the chat template drops tools: set render.tool_style: system, or use a template with tools",
                evidence={"tools missing": float(len(missing)), "of": float(len(tools))},
            )
        )
    unread = [tool.name for tool in tools if not _round_trip(render, tool)]
    if unread:
        found.append(
            Diagnosis(
                kind="tool_calls_unreadable",
                cause=f"a call of {_list(unread)} in the template's own format is not read back as that call",
                advice="set render.tool_style: system, or use a template whose calls are Hermes or Llama 3 JSON",
                evidence={"tools": float(len(unread)), "of": float(len(tools))},
            )
        )
    result = Message(role="tool", content=_NEXT, tool_call_id="call-0", name=tools[0].name)
    if _NEXT not in render.decode(render.extend(render.encode_action(_REPLY), [result])):
        found.append(
            Diagnosis(
                kind="tool_results_lost",
                cause="the template does not write a tool's result, so the model never reads it",
                advice="set render.tool_style: system, or use a template that knows the role 'tool'",
            )
        )
    return found


def check_prefix(render: Render) -> list[Diagnosis]:
    """Diagnoses where what follows an action holds more than new messages, or re-rendering would change the past."""
    opening, then = Message(role="user", content=_OPENING), Message(role="user", content=_NEXT)
    start, action = render.start([opening], ()), render.encode_action(_REPLY)
    added = render.decode(render.extend(action, [then]))
    repeated = sum(word in added for word in (_OPENING, _REPLY))
    if repeated or _NEXT not in added:
        return [
            Diagnosis(
                kind="history_rerendered",
                cause="what the renderer adds after an action is not the new messages alone",
                advice="the renderer's `extend` must return only what follows the action: new messages and the next "
                "header",
                evidence={"earlier messages written again": float(repeated)},
            )
        ]
    reply = Message(role="assistant", content=_REPLY, thinking=_THOUGHT)
    again = render.decode(render.start([opening, reply, then], ()))
    lost = [word for word in (_OPENING, _REPLY, _NEXT) if word not in again]
    if lost or _OPENING not in render.decode(start):
        return [
            Diagnosis(
                kind="messages_lost",
                cause="the chat template leaves out messages of the conversation",
                advice="give render.template a Jinja file that writes every message",
                evidence={"messages left out": float(max(1, len(lost)))},
            )
        ]
    if _THOUGHT in again:
        return []
    return [
        Diagnosis(
            kind="prefix_unstable",
            cause="the chat template drops the thinking of earlier turns when a conversation is rendered again",
            advice="training keeps tokens as they were sampled; serve the model by `turnwise gateway`, or by a "
            "template that keeps thinking, so that it reads what it was trained on",
            severity="sign",
        )
    ]


def _parameters(tool: ToolSpec) -> list[str]:
    properties = tool.parameters.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []


def _round_trip(render: Render, tool: ToolSpec) -> bool:
    call = sample_call(tool, "call-0")
    read = render.parse(render.encode_action(render.write(Message(role="assistant", content="", tool_calls=(call,)))))
    if len(read.tool_calls) != 1 or read.tool_calls[0].name != call.name or read.tool_calls[0].problem:
        return False
    return bool(json.loads(read.tool_calls[0].arguments) == json.loads(call.arguments))


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (" and others" if len(names) > 5 else "")
