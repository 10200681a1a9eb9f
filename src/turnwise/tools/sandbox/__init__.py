"""Where code that a model wrote is run: the `Sandbox` protocol, its settings, and our own, `ProcessSandbox`."""

from turnwise.tools.sandbox.base import CodeResult, ExitKind, Resource, Sandbox, SandboxSettings
from turnwise.tools.sandbox.factory import open_sandbox
from turnwise.tools.sandbox.process import ProcessSandbox

__all__ = [
    "CodeResult",
    "ExitKind",
    "ProcessSandbox",
    "Resource",
    "Sandbox",
    "SandboxSettings",
    "open_sandbox",
]
