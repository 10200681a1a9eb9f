"""`turnwise doctor`: a preflight of a recipe and a post-mortem of a run, that name what is wrong and what to do.

The checks themselves are in `turnwise.checks`; here is what gathers their inputs: a short probe, or a run's files.
"""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.doctor.catalogue import CHECKS
    from turnwise.doctor.examination import Examination
    from turnwise.doctor.postmortem import examine_run
    from turnwise.doctor.preflight import examine_recipe

__all__ = ["CHECKS", "Examination", "examine_recipe", "examine_run"]
__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": ["CHECKS"],
        "examination": ["Examination"],
        "postmortem": ["examine_run"],
        "preflight": ["examine_recipe"],
    },
)
