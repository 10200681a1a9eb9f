"""Makes the sandbox that the settings name: one of ours, or a class of the user's own.

Another backend (a container, gVisor, bubblewrap) is a class that takes `SandboxSettings` and is a `Sandbox`.
"""

from typing import Final

from turnwise.errors import ConfigError
from turnwise.plugins import PluginKind, check_arguments, find_plugin
from turnwise.tools.sandbox.base import Sandbox, SandboxSettings, check_gaps

SANDBOX: Final = PluginKind(
    key="sandbox.kind",
    noun="sandbox kind",
    group="turnwise.sandboxes",
    args="sandbox.args",
    contract="write a class that takes SandboxSettings and has the methods of turnwise.tools.Sandbox",
)
SANDBOXES: Final = {"process": "turnwise.tools.sandbox.process:ProcessSandbox"}
"""Those that come with the package."""


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """`open_sandbox(SandboxSettings(seconds=2))`."""
    make = find_plugin(SANDBOX, settings.kind, SANDBOXES)
    assert callable(make), "only what can be called is found"
    sandbox = make(settings, **check_arguments(SANDBOX, settings.kind, make, settings.args, supplied=1))
    if not isinstance(sandbox, Sandbox):
        raise ConfigError(f"{SANDBOX.key}: {settings.kind} made no sandbox; {SANDBOX.contract}")
    if settings.kind not in SANDBOXES:  # ours have checked themselves
        check_gaps(sandbox.gaps, settings.isolation)
    return sandbox
