"""Environments and tools of ours, served to programs of others: over MCP and as OpenEnv servers."""
