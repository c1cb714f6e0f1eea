"""Requests of every dialect, made from its examples: what tests across dialects send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from gateway import dialects
from gateway.core.fields import WORDS, Example, Field, with_field
from gateway.core.http import Response, Route
from gateway.core.messages import Media, Score, Work
from gateway.core.ports import Settings
from gateway.wire import sse

DIALECTS = {name: dialects.create(name, Settings()) for name in dialects.REGISTRY}


class Way(NamedTuple):
    """One path of one dialect for one operation, as clients call it."""

    dialect: str
    operation: str
    example: Example
    route: Route

    def __str__(self) -> str:
        return f"{self.dialect} {self.operation} {self.route.path}"

    def path(self, model: str = "ep") -> str:
        """With the query that it needs; `model` is a parameter of the path, if it has any."""
        return target(self.dialect, self.route, model)

    def field(self, name: str) -> Field | None:
        """The field that is canonically called `name`, and that the body holds."""
        fields = [one for one in DIALECTS[self.dialect].fields[self.operation] if one.where == "body"]
        return (
            next((one for one in fields if one.name == name), None)
            or next((one for one in fields if one.targets == (name,)), None)
            or next((one for one in fields if one.name.endswith(f".{name}")), None)
            or next((one for one in fields if name in one.targets and "." not in one.name), None)
            or next((one for one in fields if name in one.targets), None)
        )

    def body(self, text: str = WORDS, *, stream: bool | None = None, **members: Any) -> dict[str, Any]:
        """With `text` as the prompt, and members by their canonical names: what the dialect has no name for is left
        out. stream: whether a stream is asked for, where the body says so; None leaves that to the dialect."""
        body: dict[str, Any] = _with_text(self.example.body, text)
        if self.example.route == "compact":
            members.pop("max_tokens", None)  # a summary that was cut off is an error
        for name, value in members.items():
            field = self.field(name)
            if field is not None:
                inner = body.get(field.name.partition(".")[0]) if "." in field.name else None
                body = with_field(body, field, value)
                if isinstance(inner, dict):
                    outer = field.name.partition(".")[0]
                    body[outer] = {**inner, **body[outer]}
        if stream is not None and self.example.streams == "asked":
            body["stream"] = stream
        return body

    def answers(self, *, stream: bool) -> bool:
        """Whether such a reply can be had here."""
        return self.example.streams in ("asked", "always" if stream else "never")


def _with_text(value: Any, text: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_text(inner, text) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_text(inner, text) for inner in value]
    return text if value == WORDS else value


def operation_of(op: object) -> str:
    """By which name the tables of a dialect have what it read."""
    if isinstance(op, Media):
        return op.work
    name = type(op).__name__.lower()
    if isinstance(op, Score):
        return "score" if isinstance(op.memo, str) else "rerank"
    return {"counttokens": "count"}.get(name, name)


def like_openai(dialect: str) -> bool:
    """Whether the chats of `dialect` have the members of OpenAI's."""
    names = {field.name for field in DIALECTS[dialect].fields.get("chat", ())}
    return {"messages", "top_p", "response_format"} <= names or {"messages", "top_p", "tools", "seed"} <= names


def refusal(response: Response) -> bytes:
    """The JSON document of a refusal: the body, or the data of its first event."""
    if response.header(b"content-type") == b"application/json":
        return response.body
    return sse.Reader().feed(response.body)[0].data


def target(dialect: str, route: Route, model: str = "ep") -> str:
    """The path of `route` with the query that it needs."""
    path = ("" if route.absolute else DIALECTS[dialect].prefixes[0]) + re.sub(r"\{\w+(:path)?\}", model, route.path)
    made = [one for found in DIALECTS[dialect].examples.values() for one in found]
    query = next((one.query for one in made if one.route == route.name), made[0].query)
    return f"{path}?{query.decode()}" if query else path


QUERY = "&".join(
    sorted(
        {one.query.decode() for made in DIALECTS.values() for found in made.examples.values() for one in found} - {""}
    )
)
"""What the dialects that need something in the query need there; the others do not mind it."""


MEDIA: tuple[str, ...] = get_args(Work)
"""Operations whose requests may be uploads and whose replies may be sound: tests of their own have the laws of these
(tests/unit/app/test_media.py, tests/laws/conformance/test_media.py)."""


def ways() -> Iterator[Way]:
    """Every path that clients send JSON to, and each operation that it reads."""
    for name, dialect in DIALECTS.items():
        for operation, examples in dialect.examples.items():
            for example in examples:
                if example.files:
                    continue
                for route in dialect.routes:
                    # Where the path alone names the model, another path of the same route takes it from the body.
                    if route.name == example.route and "{deployment}" not in route.path:
                        yield Way(name, operation, example, route)


WAYS = tuple(ways())


def usual(dialect: str, *, stream: bool | None = None) -> Way:
    """The usual way to chat, or to do whatever comes first; with `stream`, one that gives such a reply."""
    found = [way for way in WAYS if way.dialect == dialect and (stream is None or way.answers(stream=stream))]
    return next((way for way in found if way.operation == "chat"), found[0])


GENERATING = [name for name, made in DIALECTS.items() if {"chat", "complete"} & made.examples.keys()]
"""The dialects whose clients ask a model to generate."""
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (usual(name).path(), usual(name).body("hello", stream=False, max_tokens=10)) for name in GENERATING
}
"""Dialect -> path and body, without a model, of its usual chat."""
