"""A low-level MCP server whose list of tools has several pages."""

import asyncio

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOLS = [
    types.Tool(name=f"tool_{place}", description="One of many.", input_schema={"type": "object"}) for place in range(25)
]


async def list_tools(context, params):
    first = int(params.cursor) if params is not None and params.cursor else 0
    after = str(first + 10) if first + 10 < len(TOOLS) else None
    return types.ListToolsResult(tools=TOOLS[first : first + 10], next_cursor=after)


async def main():
    server = Server("pages", on_list_tools=list_tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
