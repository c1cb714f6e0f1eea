"""Tools of the web that an API's own server runs, in the `tools` of a chat.

Chats have no form for their results, so nothing here runs them: the model answers without them. Sources of the types:
OpenAI's Responses API and z.ai (`web_search`), Anthropic (`web_fetch_...`), Groq (`browser_search`), Friendli
(`web:search`, `web:url`), OpenRouter (`openrouter:web_search`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Extra
from gateway.wire.json import NULL, decoded, encode, items_of
from gateway.wire.openai.requests.views import MOST_PARTS

_MARK = re.compile(rb'"(?:openrouter:)?(?:web[_:]|browser_search)')
_TYPE = re.compile(r"(?:openrouter:)?web_(?:search|fetch)[a-z0-9_]{0,32}|web:(?:search|url)|browser_search")
_PARAM = re.compile(r"tools\.(\d+)(.*)", re.DOTALL)
_REQUIRED = b'"required"'


class _ToolIn(Struct):
    type: Any = None


_tool = msgspec.json.Decoder(_ToolIn)


@contextmanager
def without_web_tools(raw: Extra) -> Iterator[tuple[str, ...]]:
    """Removes the tools of the web from `raw`, the members of a body, and gives their names. An error that is raised
    inside names the other tools by their indices in the client's body. Raises GatewayError(UNSUPPORTED) if the choice
    forces one: a model would make its result up."""
    kinds = _kinds(raw)
    taken = _take(raw, kinds)
    try:
        yield taken
    except GatewayError as error:
        if taken and (found := _PARAM.match(error.param or "")) is not None:
            left = [index for index, kind in enumerate(kinds) if kind is None]
            param = f"tools.{left[int(found[1])]}{found[2]}"
            error.message, error.param = error.message.replace(f"'{found[0]}'", f"'{param}'"), param
        raise


def _kinds(raw: Extra) -> list[str | None]:
    """As `_kind_of`, of each of the tools; none if there are more than the body's reader takes."""
    given = raw.get("tools")
    if given is None or _MARK.search(given) is None:
        return []
    tools = decoded(items_of, given) or []
    return [_kind_of(tool) for tool in tools] if len(tools) <= MOST_PARTS else []


def _take(raw: Extra, kinds: list[str | None]) -> tuple[str, ...]:
    found = [kind for kind in kinds if kind is not None]
    if not found:
        return ()
    left = [tool for tool, kind in zip(items_of(raw["tools"]), kinds, strict=True) if kind is None]
    choice = raw.get("tool_choice", NULL)
    if (not left and bytes(choice).lower() == _REQUIRED) or _kind_of(choice) is not None:
        at = f"tools.{kinds.index(found[0])}"
        raise GatewayError(Kind.UNSUPPORTED, f"'{at}' is not supported: no worker does this", param=at)
    if left:
        raw["tools"] = Raw(encode(left))
    else:
        del raw["tools"]
    return tuple(dict.fromkeys(f"tools.{kind}" for kind in found))


def _kind_of(raw: Raw) -> str | None:
    """The type of a tool of the web, or of a choice of one; None for anything else."""
    found = decoded(_tool.decode, raw)
    kind = found.type if found is not None else None
    return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else None
