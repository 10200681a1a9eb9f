"""The encyclopedia with a search that takes its time, as one behind a network does."""

import asyncio
from collections.abc import Sequence

from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.types import Message, Step


class SlowEncyclopedia(Encyclopedia):
    """`SlowEncyclopedia(seconds=0.2, hops=[2])`: every turn with a search in it waits so long for the answer."""

    def __init__(self, *, seconds: float = 0.2, hops: Sequence[int] = (2,), lazy: float = 0.6) -> None:
        super().__init__(hops=hops, lazy=lazy)
        self._seconds = seconds

    async def step(self, message: Message) -> Step:
        if message.tool_calls:
            await asyncio.sleep(self._seconds)
        return await super().step(message)
