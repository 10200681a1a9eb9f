"""Plays an environment by OpenEnv's own client, and prints what it saw as JSON. `openenv_client.py URL INDEX ANSWER`"""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient


async def main(url, index, answer):
    async with GenericEnvClient(base_url=url) as client:
        opening = await client.reset(index=index, split="train")
        found = await client.step({"tool": "search", "arguments": {"query": "Lumen"}})
        state = await client.state()
        end = await client.step({"message": f"<answer>{answer}</answer>"})
    seen = {
        "opening": opening.observation["text"],
        "found": found.observation["messages"],
        "state": state,
        "end": [end.reward, end.done],
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
