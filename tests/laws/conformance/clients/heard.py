"""A client as a reader of bytes, and what it understood of a reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from gateway.core.http import Headers, Request, Response
from tests.laws.conformance.scenarios import Operation, Scenario

Turn = tuple[Any, ...]
"""user, text | system, text | say, text | call, its number, text | result, of which call, text, with an image or not"""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HI = [{"role": "user", "content": "hi"}]


class HeardChoice(Struct):
    """calls are (id, name, arguments); logprobs (token, logprob); finish and stop as the client reads them."""

    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: list[list[str | None]] = field(default_factory=list)
    logprobs: list[list[Any]] = field(default_factory=list)
    finish: str | None = None
    stop: Any = None


class Heard(Struct):
    """What a client made of a reply. complete: it saw the mark by which its wire says so, and no error; usage is
    (input, output)."""

    choices: dict[int, HeardChoice] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    error: str | None = None
    complete: bool = False

    def of(self, choice: int) -> HeardChoice:
        return self.choices.setdefault(choice, HeardChoice())


class Client(Struct, frozen=True):
    """One way to call one dialect.

    hear, read  a stream and a whole reply, as understood
    refused     the message of an error answer
    speaks      the backend wire that its streams also are, or None
    blind       what its wire has no word for, and why: fields of `HeardChoice`, "usage", or `Scenario.needs`
    words       its own words for why a choice ended, where they differ from OpenAI's; `stop_sequence` is for a stop
                by a sequence of the client's
    own     makes a body in OpenAI's words one in those of the dialect
    asks_to_stream  whether `stream` in the body asks for it, or the path does
    """

    name: str
    dialect: str
    operation: Operation
    path: str
    route: str
    hear: Callable[[bytes], Heard]
    read: Callable[[bytes], Heard]
    refused: Callable[[Response], str]
    speaks: str | None = None
    blind: Mapping[str, str] = {}
    words: Mapping[str, str] = {}
    asks_to_stream: bool = True
    params: Mapping[str, str] = {}
    query: bytes = b""
    headers: Headers = []
    own: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def ask(self, scenario: Scenario, *, stream: bool) -> Request:
        content = {"messages": HI} if scenario.operation == "chat" else {"prompt": "hi"}
        # To be blind to `stop` is not to be told which one matched: it may be asked for all the same.
        asks = {name: value for name, value in scenario.asks.items() if name == "stop" or name not in self.blind}
        body: dict[str, Any] = {"model": "m", **content, **asks}
        if stream:
            if self.asks_to_stream:
                body["stream"] = True
            if scenario.usage != "absent" and self.tells("usage"):
                body["stream_options"] = {"include_usage": True}
        headers = [(b"content-type", b"application/json"), *self.headers]
        data = json.dumps(self.own(body)).encode()
        return Request("POST", self.path, headers, data, self.query, self.route, dict(self.params), "r")

    def tells(self, what: str) -> bool:
        return what not in self.blind


def events(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of each event, in the one form that all recorded clients read: LF only, one space, one line."""
    assert b"\r" not in stream
    found = []
    assert not stream or stream.endswith(b"\n\n"), stream[-80:]
    for piece in stream.decode().split("\n\n"):
        lines = [line for line in piece.split("\n") if line]
        if not lines:
            continue
        kind = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
        assert len(lines) == 1, piece
        assert lines[0].startswith("data: "), piece
        found.append((kind, lines[0][6:]))
    return found
