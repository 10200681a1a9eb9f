"""The `openai` and `anthropic` SDKs and `openai-agents`, as they come from the registry, through the gateway."""

import json
import time

import pytest

from round_trips import FAMILIES, RENDERS, REPLIES, SpellingEngine, check_equal, play, says, search
from turnwise.gateway.program import AgentProgram, shared_gateway
from turnwise.tools import run_calls
from turnwise.types import StopReason, ToolCall

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
agents = pytest.importorskip("agents")


async def run(*calls):
    made = [ToolCall(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in calls]
    return [result.content for result in await run_calls([search], made)]


async def openai_agent(task, client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task.data["question"]}]
    async with client.openai() as api:
        while True:
            asked = {"model": "m", "messages": messages, "tools": [search.spec.to_openai()]}
            message = (await api.chat.completions.create(**asked)).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                (found,) = await run((call.id, call.function.name, call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


async def openai_stream(task, client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task.data["question"]}]
    async with client.openai() as api:
        while True:
            asked = {"model": "m", "messages": messages, "tools": [search.spec.to_openai()]}
            async with api.chat.completions.stream(**asked) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            messages.append(message.to_dict() if hasattr(message, "to_dict") else message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                (found,) = await run((call.id, call.function.name, call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


async def openai_responses(task, client):
    items = [{"role": "user", "content": task.data["question"]}]
    function = {"type": "function", **search.spec.to_openai()["function"], "strict": False}
    async with client.openai() as api:
        while True:
            reply = await api.responses.create(model="m", instructions="Be brief.", input=items, tools=[function])
            items += [item.to_dict() for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                return reply.output_text
            for call in calls:
                (found,) = await run((call.call_id, call.name, call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})


async def anthropic_agent(task, client, stream=False):
    spec = search.spec
    tool = {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}
    messages = [{"role": "user", "content": task.data["question"]}]
    async with client.anthropic() as api:
        while True:
            asked = {"model": "m", "max_tokens": 999, "system": "Be brief.", "messages": messages, "tools": [tool]}
            if stream:
                async with api.messages.stream(**asked) as events:
                    reply = await events.get_final_message()
            else:
                reply = await api.messages.create(**asked)
            messages.append({"role": "assistant", "content": reply.content})
            uses = [block for block in reply.content if block.type == "tool_use"]
            if not uses:
                return "".join(block.text for block in reply.content if block.type == "text")
            found = await run(*((use.id, use.name, json.dumps(use.input)) for use in uses))
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": text}
                for use, text in zip(uses, found, strict=True)
            ]
            messages.append({"role": "user", "content": results})


async def anthropic_stream(task, client):
    return await anthropic_agent(task, client, stream=True)


async def framework(task, client):
    """The schema of its tool is the framework's own, so it is given ours."""
    agents.set_tracing_disabled(True)

    async def invoke(_, arguments):
        return (await run(("c", "search", arguments)))[0]

    tool = agents.FunctionTool(
        name=search.spec.name,
        description=search.spec.description,
        params_json_schema=dict(search.spec.parameters),
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )
    async with client.openai() as api:
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=api)
        agent = agents.Agent(name="a", instructions="Be brief.", tools=[tool], model=model)
        return str((await agents.Runner.run(agent, task.data["question"])).final_output)


@pytest.mark.parametrize(
    "agent", [openai_agent, openai_stream, openai_responses, anthropic_agent, anthropic_stream, framework]
)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_of_an_sdk_is_the_native_one(name, agent):
    for label, replies in REPLIES.items():
        if label != "is cut off" or agent not in (openai_stream,):  # this SDK raises where a reply is cut off
            check_equal(AgentProgram(function=agent, rewards="exact_match"), name, replies)


def test_an_sdk_retries_while_weights_change_and_that_is_one_turn():
    async def agent(task, client):
        with shared_gateway().paused(retry_after=1):
            async with client.openai(max_retries=0) as api:
                with pytest.raises(openai.RateLimitError):
                    await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        async with client.openai() as api:
            reply = await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        async with client.anthropic() as api:
            with pytest.raises(anthropic.BadRequestError):
                await api.messages.create(
                    model="m", max_tokens=5, messages=[{"role": "user", "content": [{"type": "image"}]}]
                )
        return reply.choices[0].message.content

    from round_trips import RENDERS

    episode, _ = play(
        AgentProgram(function=agent, rewards="exact_match"), RENDERS["qwen2.5"], [says("<answer>Norway</answer>")]
    )
    assert (episode.failure, len(episode.turns), episode.reward) == ("", 1, 1.0)


def test_a_full_context_is_the_sdks_own_error():
    seen = []

    async def agent(task, client):
        messages = [{"role": "user", "content": "x" * 9000}]
        async with client.openai() as api:
            try:
                await api.chat.completions.create(model="m", messages=messages)
            except openai.BadRequestError as error:
                seen.append(error.code)
                raise

    program = AgentProgram(function=agent)
    SpellingEngine.context_limit = 100
    try:
        episode, _ = play(program, RENDERS["qwen2.5"], ["x"])
    finally:
        SpellingEngine.context_limit = 100_000
    assert (seen, episode.stop) == (["context_length_exceeded"], StopReason.CONTEXT_FULL)


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_client_for_an_episode_costs_little_and_is_closed_with_it(sdk):
    """An SDK's own way to make one reads the certificates each time, which takes longer than many an episode."""
    made, costs = [], []

    async def agent(task, client):
        began = time.thread_time()
        made.append(getattr(client, sdk)())
        ours = time.thread_time() - began
        began = time.thread_time()
        async with type(made[-1])(base_url=client.openai_base_url, api_key="x"):
            costs.append((ours, time.thread_time() - began))
        await client.chat(messages=[{"role": "user", "content": "x"}])

    for _ in range(3):
        episode, _ = play(AgentProgram(function=agent), RENDERS["qwen2.5"], [says("x")])
        assert episode.failure == ""
    ours, theirs = (min(cost) for cost in zip(*costs, strict=True))
    assert ours < theirs / 4
    assert all(one.is_closed() for one in made)
