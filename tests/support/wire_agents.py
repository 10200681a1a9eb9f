"""Agents that own their loop and speak a wire format over plain HTTP, as SDKs do: ask, run tools, ask again."""

import json

import httpx2

from turnwise.tools import run_calls
from turnwise.types import ToolCall


class WireAgent:
    """`WireAgent(tools, api="openai", stream=True)`: called with a task and a client, it plays an episode."""

    def __init__(self, tools, *, api="openai", stream=False, system="Be brief.", most=8, **fields):
        self.tools, self.api, self.stream, self.system, self.most, self.fields = (
            tools,
            api,
            stream,
            system,
            most,
            fields,
        )
        self.asked = []
        """Every body that was sent."""

    async def __call__(self, task, client):
        play = {"openai": self._openai, "anthropic": self._anthropic, "responses": self._responses}[self.api]
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            return await play(task, client, http)

    async def _openai(self, task, client, http):
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": task.data["question"]},
        ]
        tools = [tool.spec.to_openai() for tool in self.tools]
        for _ in range(self.most):
            body = {"model": "m", "messages": messages, "tools": tools, "stream": self.stream, **self.fields}
            url, key = f"{client.openai_base_url}/chat/completions", {"Authorization": f"Bearer {client.api_key}"}
            reply = await self._post(http, url, key, body)
            said = join_chunks(reply) if self.stream else reply["choices"][0]["message"]
            messages.append({k: v for k, v in said.items() if k in ("role", "content", "tool_calls")})
            if not said.get("tool_calls"):
                return said["content"]
            calls = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in said["tool_calls"]]
            for (call_id, _, _), result in zip(calls, await self._run(calls), strict=True):
                messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        return ""

    async def _anthropic(self, task, client, http):
        messages = [{"role": "user", "content": task.data["question"]}]
        tools = [
            {"name": one.spec.name, "description": one.spec.description, "input_schema": one.spec.parameters}
            for one in self.tools
        ]
        for _ in range(self.most):
            body = {"model": "m", "max_tokens": 999, "system": self.system, "messages": messages, "tools": tools}
            url, key = f"{client.anthropic_base_url}/v1/messages", {"x-api-key": client.api_key}
            reply = await self._post(http, url, key, {**body, "stream": self.stream, **self.fields})
            blocks = join_blocks(reply) if self.stream else reply["content"]
            messages.append({"role": "assistant", "content": blocks})
            uses = [block for block in blocks if block["type"] == "tool_use"]
            if not uses:
                return "".join(block["text"] for block in blocks if block["type"] == "text")
            results = await self._run([(use["id"], use["name"], json.dumps(use["input"])) for use in uses])
            answers = [
                {"type": "tool_result", "tool_use_id": use["id"], "content": result}
                for use, result in zip(uses, results, strict=True)
            ]
            messages.append({"role": "user", "content": answers})
        return ""

    async def _responses(self, task, client, http):
        items = [{"role": "user", "content": task.data["question"]}]
        tools = [{"type": "function", **one.spec.to_openai()["function"]} for one in self.tools]
        for _ in range(self.most):
            body = {"model": "m", "instructions": self.system, "input": items, "tools": tools, "stream": self.stream}
            url, key = f"{client.openai_base_url}/responses", {"Authorization": f"Bearer {client.api_key}"}
            reply = await self._post(http, url, key, {**body, **self.fields})
            output = reply[-1]["response"]["output"] if self.stream else reply["output"]
            items += output
            calls = [
                (one["call_id"], one["name"], one["arguments"]) for one in output if one["type"] == "function_call"
            ]
            if not calls:
                return "".join(part["text"] for one in output if one["type"] == "message" for part in one["content"])
            for (call_id, _, _), result in zip(calls, await self._run(calls), strict=True):
                items.append({"type": "function_call_output", "call_id": call_id, "output": result})
        return ""

    async def _run(self, calls):
        made = [ToolCall(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in calls]
        return [result.content for result in await run_calls(self.tools, made)]

    async def _post(self, http, url, key, body):
        self.asked.append(body)
        answer = await http.post(url, json=body, headers=key)
        answer.raise_for_status()
        return read_events(answer.text) if self.stream else answer.json()


def read_events(text):
    """The data of a stream's events."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def join_chunks(chunks):
    """A message out of the deltas of its stream, as OpenAI's SDK accumulates them."""
    message = {"role": None, "content": None}
    calls = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role") or message["role"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls") or []:
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                function = calls[part["index"]]["function"]
                function["name"] += part["function"].get("name", "")
                function["arguments"] += part["function"]["arguments"]
    return {**message, "tool_calls": calls} if calls else message


def join_blocks(events):
    """The blocks of a message out of its stream, as Anthropic's SDK accumulates them."""
    blocks = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] += delta["signature"]
                case "input_json_delta":
                    block["json"] += delta["partial_json"]
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return blocks
