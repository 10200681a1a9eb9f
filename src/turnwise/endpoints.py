"""Where a model behind an OpenAI-compatible API is: the settings that agents and judges share."""

from pydantic import field_validator

from turnwise.http import parse_address
from turnwise.settings import Settings

CHAT_PATH = "/chat/completions"
"""Of a chat, after the endpoint's own address."""


class ChatEndpointSettings(Settings):
    """The endpoint and its model."""

    url: str
    """Of the endpoint, with its version: `http://127.0.0.1:8000/v1`."""
    model: str
    """The name under which the endpoint knows the model."""
    key_env: str | None = None
    """The environment variable that holds the endpoint's key, sent as a bearer token; null sends none."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if parse_address(url) is None:
            raise ValueError(f"'{url}' is not the address of an endpoint; write e.g. http://127.0.0.1:8000/v1")
        return url.rstrip("/").removesuffix(CHAT_PATH)
