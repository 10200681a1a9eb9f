"""An MCP server as its documentation would write one: it knows nothing of turnwise. `pip install mcp`."""

import hashlib

from mcp.server.mcpserver import MCPServer

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]

server = MCPServer("boxes")


@server.tool()
def look(box: str) -> str:
    """Looks into a box."""
    owners = box.removeprefix("box of ").split()
    if not box.startswith("box of ") or len(owners) != 3:
        raise ValueError(f"there is no {box}")
    return f"The {box} is {COLOURS[hashlib.blake2b(box.encode()).digest()[0] % len(COLOURS)]}."


if __name__ == "__main__":
    server.run("stdio")
