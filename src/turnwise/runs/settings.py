"""The `trajectories` section of a recipe. Neither torch nor pyarrow: a recipe is checked before they load."""

from pydantic import Field

from turnwise.settings import Settings


class TrajectorySettings(Settings):
    """Which stored trajectories of training are thinned out when they are many; evaluations are always kept."""

    max_gigabytes: float | None = Field(default=20.0, gt=0)
    """The size of `trajectories/` above which files of the oldest steps are thinned; null keeps everything."""
    keep_best: int = Field(default=4, ge=0)
    """Episodes of a step with the highest rewards that are always kept whole, as failed ones are."""
    keep_worst: int = Field(default=4, ge=0)
    """Episodes of a step with the lowest rewards that are always kept whole."""
