"""An episode through the gateway is the episode of the native loop, id by id, for every family of templates."""

import pytest

from round_trips import FAMILIES, REPLIES, check_equal, search
from turnwise.gateway.program import AgentProgram
from wire_agents import WireAgent

WIRES = [(api, stream) for api in ("openai", "anthropic", "responses") for stream in (False, True)]


@pytest.mark.parametrize(("api", "stream"), WIRES)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_through_the_gateway_is_the_native_one(name, api, stream):
    for replies in REPLIES.values():
        program = AgentProgram(function=WireAgent([search], api=api, stream=stream), rewards="exact_match")
        check_equal(program, name, replies)
