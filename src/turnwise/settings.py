"""The base of every configuration model: frozen, and strict about keys it does not know.

Each room keeps its settings beside the code that reads them; `config.py` only puts them together.
"""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """One section of a recipe; a field's docstring, beneath it, is its documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
