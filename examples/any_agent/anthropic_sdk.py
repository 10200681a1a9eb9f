"""An agent on the `anthropic` SDK, streaming: blocks of text and tool use, results sent back as the user's blocks.

Nothing in `answer` knows that it is trained. By itself: ANTHROPIC_BASE_URL=... ANTHROPIC_API_KEY=... python ...
"""

import asyncio
import json
import os

from anthropic import AsyncAnthropic
from boxes import SYSTEM, look, tasks

from turnwise import Task

TOOL = {
    "name": "look",
    "description": "Looks into a box.",
    "input_schema": {
        "type": "object",
        "properties": {"box": {"type": "string", "description": "Such as: box of Ada."}},
        "required": ["box"],
    },
}


async def answer(task: Task, anthropic: AsyncAnthropic) -> str:
    asked = {"model": "any", "max_tokens": 64, "system": SYSTEM, "tools": [TOOL]}
    messages = [{"role": "user", "content": task.data["question"]}]
    for _ in range(3):
        async with anthropic.messages.stream(messages=messages, **asked) as stream:
            message = await stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            return "".join(block.text for block in message.content if block.type == "text")
        seen = [(use.id, look(task, str(use.input.get("box")))) for use in uses]
        results = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in seen]
        messages.append({"role": "user", "content": results})
    return "no answer"


async def run(task: Task, client) -> str:  # noqa: ANN001 - turnwise.gateway.client.AgentClient
    """Called by turnwise for each episode."""
    async with client.anthropic() as anthropic:
        return await answer(task, anthropic)


if __name__ == "__main__":
    given = os.environ.get("TURNWISE_TASK")
    print(asyncio.run(answer(Task(**json.loads(given)) if given else tasks("test")[0], AsyncAnthropic())))
