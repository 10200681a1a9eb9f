"""The tools of MCP servers, as tools of an environment; the package `mcp` is needed when one is connected."""

from turnwise.tools.mcp.connection import ServerLostError
from turnwise.tools.mcp.server import MCPServer
from turnwise.tools.mcp.tools import MCPTools

__all__ = ["MCPServer", "MCPTools", "ServerLostError"]
