"""What breaks beneath a tool, and is neither its answer nor the agent's mistake."""


class InfrastructureError(Exception):
    """A server, a thread or a connection that a tool needs is lost: its episode fails and is never scored."""
