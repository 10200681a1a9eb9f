"""An agent on the `openai` SDK, as its documentation writes one: ask, run the tools, ask again.

Nothing in `answer` knows that it is trained. By itself: OPENAI_BASE_URL=... OPENAI_API_KEY=... python openai_sdk.py
"""

import asyncio
import json
import os

from boxes import SYSTEM, look, tasks
from openai import AsyncOpenAI

from turnwise import Task

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks into a box.",
        "parameters": {
            "type": "object",
            "properties": {"box": {"type": "string", "description": "Such as: box of Ada."}},
            "required": ["box"],
        },
    },
}


async def answer(task: Task, openai: AsyncOpenAI) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.data["question"]}]
    for _ in range(3):
        completion = await openai.chat.completions.create(model="any", messages=messages, tools=[TOOL])
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            seen = look(task, str(json.loads(call.function.arguments).get("box")))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
    return "no answer"


async def run(task: Task, client) -> str:  # noqa: ANN001 - turnwise.gateway.client.AgentClient
    """Called by turnwise for each episode."""
    async with client.openai() as openai:
        return await answer(task, openai)


if __name__ == "__main__":
    given = os.environ.get("TURNWISE_TASK")
    print(asyncio.run(answer(Task(**json.loads(given)) if given else tasks("test")[0], AsyncOpenAI())))
