"""Makes the sandbox that the settings name: one of ours, or a class of the user's own.

Another backend (a container, gVisor, bubblewrap) is a class that takes `SandboxSettings` and is a `Sandbox`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from turnwise.errors import ToolError
from turnwise.spelling import suggest
from turnwise.tools.sandbox.base import Sandbox, SandboxSettings, check_gaps
from turnwise.tools.sandbox.process import ProcessSandbox

SANDBOXES: Final[dict[str, Callable[[SandboxSettings], Sandbox]]] = {"process": ProcessSandbox}
"""Those that come with the package."""


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """`open_sandbox(SandboxSettings(seconds=2))`."""
    if settings.kind in SANDBOXES:
        return SANDBOXES[settings.kind](settings)
    module, colon, name = settings.kind.partition(":")
    if not colon:
        known = f"{', '.join(SANDBOXES)}, or the module:name of your own"
        raise ToolError(f"there is no sandbox '{settings.kind}'{suggest(settings.kind, SANDBOXES)}; there is: {known}")
    try:
        make = cast(Callable[[SandboxSettings], Sandbox], getattr(import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise ToolError(f"the sandbox '{settings.kind}' cannot be imported: {error}") from error
    sandbox = make(settings)
    check_gaps(sandbox.gaps, settings.isolation)
    return sandbox
