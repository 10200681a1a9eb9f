"""What an MCP server answers, as text that a model can read.

Invariant: every part of an answer is either shown or named in the text and counted; nothing is left out silently.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Final

from turnwise.tools.mcp.server import CallAnswer
from turnwise.types import Json

REWARDS: Final = "turnwise/rewards"
"""The key of `_meta` under which a server pays process rewards."""
_PLURALS: Final = {"image": "images", "audio": "audio", "blob": "blobs", "other": "other"}


def read_answer(result: object) -> CallAnswer:
    """A `CallToolResult` of the `mcp` package; its structured content is shown where it has no text."""
    unshown: Counter[str] = Counter()
    blocks = getattr(result, "content", ()) or ()
    parts = [_show(block, unshown) for block in blocks]
    structured: Json = getattr(result, "structured_content", None)
    has_text = any(getattr(block, "type", "") == "text" for block in blocks)
    if structured is not None and not has_text:
        parts.append(json.dumps(structured, ensure_ascii=False))
    return CallAnswer(
        text="\n".join(parts),
        ok=not getattr(result, "is_error", False),
        structured=structured,
        rewards=_rewards(getattr(result, "meta", None)),
        unshown=dict(unshown),
    )


def _show(block: object, unshown: Counter[str]) -> str:
    match getattr(block, "type", ""):
        case "text":
            return str(getattr(block, "text", ""))
        case "image" | "audio" as kind:
            return _name(kind, block, getattr(block, "data", ""), "", unshown)
        case "resource":
            inner = getattr(block, "resource", None)
            uri = str(getattr(inner, "uri", ""))
            if (text := getattr(inner, "text", None)) is not None:
                return f"[resource {uri}]\n{text}"
            return _name("blob", inner, getattr(inner, "blob", ""), uri, unshown)
        case "resource_link":
            words = (str(getattr(block, field, "") or "") for field in ("uri", "name", "description"))
            return f"[link {': '.join(filter(None, words))}]"
        case kind:
            unshown[_PLURALS["other"]] += 1
            return f"[{kind or 'content of no type'}: not shown]"


def _name(kind: str, block: object, data: object, uri: str, unshown: Counter[str]) -> str:
    """`[image image/png, 1.2 kB: not shown]`."""
    unshown[_PLURALS[kind]] += 1
    size = len(str(data)) * 3 // 4 - str(data).count("=")  # of base64
    words = [word for word in (kind, uri, str(getattr(block, "mime_type", "") or "")) if word]
    return f"[{' '.join(words)}, {size} bytes: not shown]"


def _rewards(meta: object) -> dict[str, float]:
    paid = meta.get(REWARDS) if isinstance(meta, dict) else None
    return dict(paid) if isinstance(paid, dict) else {}


def join_counts(counts: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Counts of content by kind, as metrics: `{"mcp_images": 2.0}`."""
    return {f"mcp_{kind}": float(count) for kind, count in counts}
