"""An agent without an SDK: the same loop over the client that every function is given."""

import json

from boxes import SYSTEM, look

from turnwise import Task

PARAMETERS = {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]}
FUNCTION = {"name": "look", "description": "Looks into a box.", "parameters": PARAMETERS}


async def run(task: Task, client) -> str:  # noqa: ANN001 - turnwise.gateway.client.AgentClient
    """Called by turnwise for each episode."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.data["question"]}]
    for _ in range(3):
        reply = await client.chat(messages=messages, tools=[{"type": "function", "function": FUNCTION}])
        message = reply["choices"][0]["message"]
        messages.append(message)
        if "tool_calls" not in message:
            return message["content"]
        for call in message["tool_calls"]:
            seen = look(task, str(json.loads(call["function"]["arguments"]).get("box")))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})
    return "no answer"
