"""Turns the tools of a request into functions, and the model's calls of them back.

A model knows each function by one name. So a tool in a namespace becomes `<namespace>__<name>`. A custom tool, which
takes any text, becomes a function with the one parameter `input`. `Toolbox.origin_of` finds the tool of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.messages import Chat, KindOfServerTool, NamedTool, ServerTool, Tool, ToolChoice
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.server_tools import as_function
from gateway.dialects.responses.views import TOOLS, ChoiceIn, SearchIn, ToolIn, TypeIn
from gateway.wire.json import NULL, decoded, encode, members_of
from gateway.wire.openai.requests.messages import read_at

_type = msgspec.json.Decoder(TypeIn)
_tool = msgspec.json.Decoder(ToolIn)
_search = msgspec.json.Decoder(SearchIn)
_object = msgspec.json.Decoder(dict[str, Any])
_INPUT = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)
# More dots than this in a model's name for a tool do not part a namespace: each costs a look-up.
_MOST_DOTS = 16
# The search of the web, in all its versions: `web_search_preview`, `web_search_2025_08_26`.
_SEARCH = "web_search"
# Kinds of tools that the gateway runs for it, and the model's names for them.
_KINDS: tuple[KindOfServerTool, ...] = ("search", "fetch")
_RUN = ("web_search", "web_fetch")
_WORDS: Mapping[str, ToolChoice] = {"auto": "auto", "required": "required", "none": "none"}


class Origin(Struct, frozen=True):
    """A tool as its client knows it."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Toolbox(Struct):
    """The tools of one request, read.

    tools      the tools that the model sees, by its names for them
    dropped    the names of tools that are left out, because no worker executes them
    described  the tools that stand in the request itself, for its reply
    runs       the server tools that the gateway runs
    run        those of `tools` that it runs for this request, by name
    search     the search of the web by the API's server, if it is offered
    """

    runs: frozenset[KindOfServerTool] = frozenset()
    run: dict[str, ServerTool] = {}

    tools: dict[str, Tool] = {}
    dropped: dict[str, None] = {}
    described: list[Raw] = []
    search: ServerTool | None = None
    # The model's name for a tool -> its namespace, if it has one.
    _namespaces: dict[str, str] = {}
    # The model's names for custom tools.
    _custom: set[str] = set()
    # A client's name for a tool in a namespace -> the model's name for it, or None if there are several.
    _named: dict[str, str | None] = {}

    def add(self, found: list[Raw], param: str, namespace: str | None = None) -> None:
        """Adds tools. Raises GatewayError(BAD_REQUEST) for a malformed function, custom tool or namespace."""
        for index, raw in enumerate(found):
            at = f"{param}.{index}"
            kind = read_at(at, raw, _type).type
            tool = read_at(at, raw, _tool) if kind in TOOLS else None
            if param == "tools":
                self.described.append(_in_full(raw, tool))
            if (kind or "").startswith(_SEARCH) and namespace is None:
                self.search = ServerTool("search", kind or "")
                if self._serve(read_at(at, raw, _search)):
                    continue
            if tool is None:
                self.dropped[f"tools.{(kind or '?')[:64]}"] = None
            elif tool.type == "namespace":
                if namespace is not None:  # each level would be read once more for every level around it
                    raise wrong_at(at, "a namespace cannot stand in a namespace")
                self.add(tool.tools or [], f"{at}.tools", tool.name)
            else:
                self._add(tool, namespace)
                if tool.output_schema != NULL:
                    self.dropped["tools[].output_schema"] = None

    def _serve(self, tool: SearchIn) -> bool:
        """Offers the search to the model, if the gateway runs it as the client wants it; with it the fetch of a page,
        which this API's search can do, too."""
        if "search" not in self.runs or tool.external_web_access is False or not self.tools.keys().isdisjoint(_RUN):
            return False
        allowed = tuple((tool.filters.allowed_domains if tool.filters is not None else None) or ())
        for kind, name in zip(_KINDS, _RUN, strict=True):
            if kind in self.runs:
                self.run[name] = ServerTool(kind, name, allowed=allowed)
                self.tools[name] = as_function(self.run[name])
        return True

    def _add(self, tool: ToolIn, namespace: str | None) -> None:
        name = f"{namespace}__{tool.name}" if namespace else tool.name
        if name in self.tools:  # this one takes its place
            self._custom.discard(name)
            self._namespaces.pop(name, None)
        if tool.type == "custom":
            self._custom.add(name)
            self.tools[name] = Tool(name, _described(tool), _INPUT)
        else:
            parameters = None if tool.parameters == NULL else tool.parameters
            self.tools[name] = Tool(name, tool.description, parameters, tool.strict)
        if namespace:
            self._namespaces[name] = namespace
            self._named[tool.name] = name if self._named.get(tool.name, name) == name else None

    def _origin(self, name: str) -> Origin | None:
        if name not in self.tools:
            return None
        namespace = self._namespaces.get(name)
        client_name = name if namespace is None else name[len(namespace) + 2 :]
        return Origin(client_name, namespace, name in self._custom)

    def origin_of(self, name: str) -> Origin | None:
        """The tool that the model calls `name`: by its name in `tools`, with a dot behind the namespace, or without the
        namespace if that is unique, because models leave it out. None if there is none."""
        found = self._origin(name)
        if found is None and (only := self._named.get(name)) is not None:
            found = self._origin(only)
        if found is None and name.count(".") <= _MOST_DOTS:
            parts = name.split(".")
            spaced = (f"{'.'.join(parts[:at])}__{'.'.join(parts[at:])}" for at in range(1, len(parts)))
            found = next(filter(None, map(self._origin, spaced)), None)
        return found

    def name_of(self, name: str, namespace: str | None) -> str:
        """The model's name for the tool that the client calls `name`."""
        if namespace:
            return f"{namespace}__{name}"
        if name in self.tools:
            return name
        return self._named.get(name) or name

    def choose(self, op: Chat, found: str | ChoiceIn | None) -> tuple[str, ...]:
        """Writes the tool choice into `op`, and returns the names of what is dropped. A choice of a tool that was left
        out becomes `auto`; without tools the choice is dropped. Raises GatewayError(BAD_REQUEST)."""
        if found is None:
            return ()
        if isinstance(found, str):
            if found not in _WORDS:
                raise wrong_at("tool_choice", "must be none, auto or required, or an object")
            if op.tools:
                op.tool_choice = _WORDS[found]
            return () if op.tools or found != "required" else self._want(op)
        if not op.tools:
            return self._want(op) if found.type.startswith(_SEARCH) else ("tool_choice",)
        if found.type == "allowed_tools":
            return self._allow(op, found)
        if found.type.startswith(_SEARCH) and self.run:
            op.tool_choice = NamedTool(_RUN[0])
            return ()
        if found.type not in ("function", "custom"):
            op.tool_choice = "auto"
            return ("tool_choice",)
        name = self.name_of(found.name or "", found.namespace)
        if name not in self.tools:
            raise wrong_at("tool_choice", f"there is no tool '{found.name}'")
        op.tool_choice = NamedTool(name)
        return ()

    def _want(self, op: Chat) -> tuple[str, ...]:
        """The choice wants a tool, and no function is offered."""
        op.server_tools = () if self.search is None else (self.search,)
        return () if op.server_tools else ("tool_choice",)

    def _allow(self, op: Chat, found: ChoiceIn) -> tuple[str, ...]:
        listed = found.tools or []
        names = {self.name_of(one.name or "", one.namespace) for one in listed if one.type in ("function", "custom")}
        if any(one.type.startswith(_SEARCH) for one in listed):
            names.update(self.run)
        spaces = {one.name for one in listed if one.type == "namespace"}
        op.tools = tuple(
            tool for name, tool in self.tools.items() if name in names or self._namespaces.get(name) in spaces
        )
        if not op.tools:
            op.server_tools = ()
            return ("tool_choice",)
        op.tool_choice = "required" if found.mode == "required" else "auto"
        return ()


def _described(tool: ToolIn) -> str | None:
    """The description of a custom tool, with its grammar, for which a function has no other place."""
    form = tool.format
    if form is None or form.type != "grammar" or not form.definition:
        return tool.description
    rule = f"The input must match this grammar ({form.syntax or 'lark'}):\n{form.definition}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def _in_full(raw: Raw, tool: ToolIn | None) -> Raw:
    """A tool for the reply: a function has each member of the API, null if its client left it out."""
    if tool is None or tool.type != "function":
        return raw
    if tool.description is not None and tool.strict is not None and tool.parameters != NULL:
        return raw
    members = members_of(raw)
    for name in ("description", "parameters", "strict"):
        members.setdefault(name, NULL)
    return Raw(encode(members))


def as_arguments(text: str) -> str:
    """The input of a custom tool as arguments of its function."""
    return encode({"input": text}).decode()


def as_input(arguments: str) -> str:
    """The arguments of a custom tool's function as its input: an empty one if there are none. Arguments of another form
    are the input themselves."""
    found = decoded(_object.decode, arguments) or {}
    text = found.get("input") if arguments != "{}" else ""
    return text if isinstance(text, str) and len(found) <= 1 else arguments
