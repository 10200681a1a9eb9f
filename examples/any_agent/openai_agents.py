"""An agent of the framework `openai-agents`, which owns the loop, the tool's schema and the messages."""

import boxes

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from turnwise import Task

set_tracing_disabled(True)


async def run(task: Task, client) -> str:  # noqa: ANN001 - turnwise.gateway.client.AgentClient
    """Called by turnwise for each episode."""

    @function_tool
    def look(box: str) -> str:
        """Looks into a box.

        Args:
            box: Such as: box of Ada.
        """
        return boxes.look(task, box)

    async with client.openai() as openai:
        model = OpenAIChatCompletionsModel(model="any", openai_client=openai)
        agent = Agent(name="looker", instructions=boxes.SYSTEM, tools=[look], model=model)
        result = await Runner.run(agent, str(task.data["question"]), max_turns=3)
    return str(result.final_output)
