"""The flat vocabulary of what can go wrong.

Users' mistakes are `TurnwiseError`s: one line that says what, where and what to do; the command line prints
the line and no traceback. Our own broken invariants are `assert`s and crash.
"""


class TurnwiseError(ValueError):
    """A mistake of the user's that one line can explain; every error below is one."""


class ConfigError(TurnwiseError):
    """A recipe, an override or a plug-in that is written wrongly: `rollout.grop_size: unknown key; ...`"""


class ToolError(TurnwiseError):
    """A tool that cannot be offered: no types, no docstring, a name used twice."""


class RewardError(TurnwiseError):
    """A reward that is not a finite number, or a channel paid twice."""


class EnvError(TurnwiseError):
    """An environment that breaks its contract; `turnwise check` says where."""


class TokensError(TurnwiseError):
    """A trajectory without tokens (of a model behind an API, a person) where tokens are needed."""


class RenderError(TurnwiseError):
    """A tokenizer that cannot write a conversation: no chat template, no end-of-turn token."""


class ModelError(TurnwiseError):
    """Weights that cannot be loaded, or that do not fit the recipe."""


class EngineError(TurnwiseError):
    """An engine that cannot sample: a package that is missing, a server that is gone or lacks the newest weights."""


class RunInterrupted(Exception):
    """A signal stopped a run that `--resume` continues: no mistake of the user's, so not a TurnwiseError."""

    EXIT_CODE = 75
    """EX_TEMPFAIL of sysexits.h: try again later."""


class RunError(TurnwiseError):
    """A run directory that cannot be written, read or resumed."""
