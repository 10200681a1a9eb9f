"""Messages to token ids and back; sampled tokens are never re-tokenised."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.render.base import Render
    from turnwise.render.chat import ChatRender, make_render
    from turnwise.render.formats import CallFormat, format_call, format_message, parse_text
    from turnwise.render.template import RenderSettings, Tokenizer

__all__ = [
    "CallFormat",
    "ChatRender",
    "Render",
    "RenderSettings",
    "Tokenizer",
    "format_call",
    "format_message",
    "make_render",
    "parse_text",
]
__getattr__ = lazy_names(
    __name__,
    {
        "base": ["Render"],
        "chat": ["ChatRender", "make_render"],
        "formats": ["CallFormat", "format_call", "format_message", "parse_text"],
        "template": ["RenderSettings", "Tokenizer"],
    },
)
