"""An MCP server of the official package with every kind of tool that a client must cope with.

python kitchen.py stdio | python kitchen.py http PORT
"""

import asyncio
import os
import sys
import time

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("kitchen")
counts = {"added": 0}


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    counts["added"] += 1
    return a + b


@server.tool()
def count() -> int:
    """How often this process has added."""
    return counts["added"]


@server.tool()
def fail(reason: str) -> str:
    """Fails for a reason."""
    raise ToolError(reason)  # the text of any other error stays on the server


@server.tool()
async def wait(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@server.tool()
async def freeze(seconds: float) -> str:
    """Holds the whole server."""
    time.sleep(seconds)
    return "thawed"


@server.tool()
def die() -> str:
    """Ends the server's process."""
    sys.stderr.write("the oven is on fire\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def picture() -> Image:
    """Draws a picture."""
    return Image(data=b"\x89PNG" * 10, format="png")


@server.tool()
def papers() -> CallToolResult:
    """Hands out a resource, a link to one, and a process reward."""
    return CallToolResult(
        content=[
            TextContent(text="see below"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///recipe.txt", text="flour, eggs")),
            ResourceLink(uri="file:///shop.txt", name="shop"),
        ],
        _meta={"turnwise/rewards": {"found": 0.5}},
    )


@server.tool()
def facts() -> dict[str, int]:
    """Structured content."""
    return {"eggs": 12}


@server.tool()
def told() -> str:
    """The task and the variable that this process was started with."""
    return f"{os.environ.get('TURNWISE_TASK', 'no task')} {os.environ.get('KITCHEN', '')}"


@server.tool(name="odd.name/here")
def odd(text: str) -> str:
    """Has a name that chat APIs refuse."""
    return text


@server.tool()
def grow() -> str:
    """Adds a tool to the list."""
    if not any(tool.name == "grown" for tool in asyncio.run(server.list_tools())):
        server.add_tool(lambda: "grown up", name="grown", description="Was not there at first.")
    return "grew"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
