"""Makes the sandbox that the settings name: one of ours, the first of them without a gap, or a class of the user's.

Another backend (a virtual machine, a service) is a class that takes `SandboxSettings` and is a `Sandbox`.
"""

from typing import Final

from turnwise.errors import ConfigError, ToolError
from turnwise.plugins import PluginKind, check_arguments, find_plugin
from turnwise.tools.sandbox.base import Isolation, Sandbox, SandboxSettings, check_gaps

SANDBOX: Final = PluginKind(
    key="sandbox.kind",
    noun="sandbox kind",
    group="turnwise.sandboxes",
    args="sandbox.args",
    contract="write a class that takes SandboxSettings and has the methods of turnwise.tools.Sandbox",
)
SANDBOXES: Final = {
    "auto": "turnwise.tools.sandbox.factory:find_sandbox",
    "process": "turnwise.tools.sandbox.process:ProcessSandbox",
    "bubblewrap": "turnwise.tools.sandbox.bubblewrap:BubblewrapSandbox",
    "gvisor": "turnwise.tools.sandbox.gvisor:GvisorSandbox",
    "container": "turnwise.tools.sandbox.container:ContainerSandbox",
}
"""Those that come with the package."""
_IN_ORDER: Final = ("process", "bubblewrap", "gvisor", "container")
"""The quickest first."""


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


def find_sandbox(settings: SandboxSettings) -> Sandbox:
    """The first of our sandboxes that leaves no gap on this machine; ToolError where none does.

    Settings that accept less get the process sandbox with what it offers, if nothing on the machine offers more.
    """
    demanding: Isolation = "kernel"
    reasons = []
    for kind in _IN_ORDER:
        try:
            return open_sandbox(settings.model_copy(update={"kind": kind, "isolation": demanding}))
        except ToolError as error:
            reasons.append(f"{kind}: {error}")
    try:
        return open_sandbox(settings.model_copy(update={"kind": _IN_ORDER[0]}))
    except ToolError as error:
        raise ToolError(f"{error} (tried in vain: {'; '.join(reasons[1:])})") from None
