"""What the clients of the dialect `cohere` get: whole replies, streams, errors, lists of models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway import dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Request
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat, ListModels, ModelCard
from gateway.core.ports import Settings
from gateway.core.usage import Usage
from gateway.dialects.cohere.requests import _takes_lines
from tests.laws.conformance.clients.cohere import hear_cohere
from tests.support.raised import raised

COHERE = dialects.create("cohere", Settings())
CUT = GatewayError(Kind.TRUNCATED, "cut")


@pytest.mark.parametrize("lines", [(b"application/json", b"text/event-stream"), (b"application/json", b"*/*")])
def test_a_client_that_also_accepts_events_on_another_line_gets_them(lines: tuple[bytes, ...]) -> None:
    """The lines of a list are one list (RFC 9110, section 5.3)."""
    assert not _takes_lines(Request("POST", "/v2/chat", [(b"accept", line) for line in lines]))
    assert _takes_lines(Request("POST", "/v2/chat", [(b"accept", b"application/json")]))


def asked(accept: bytes = b"*/*", **members: Any) -> Chat:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    op = COHERE.read(
        Request("POST", "/v2/chat", [(b"accept", accept)], json.dumps(body).encode(), route="chat", id="r")
    )
    assert isinstance(op, Chat)
    return op


def part(index: int, kind: Any, *texts: str) -> list[Event]:
    name = ("c", "f") if kind == "tool" else (None, None)
    return [PartStart(0, index, kind, *name), *(Delta(0, index, text) for text in texts), PartEnd(0, index)]


def reply(*parts: list[Event], reason: Any = "stop", stop: Any = None, usage: Usage | None = None) -> list[Event]:
    told: list[Event] = [UsageReport(usage)] if usage is not None else []
    inner = [event for one in parts for event in one]
    return [Start("id", "sim", 1), *inner, Finish(0, reason, reason, stop), *told, End()]


def streamed(op: Chat, events: list[Event]) -> list[dict[str, Any]]:
    writer = COHERE.writer(op)
    text = b"".join(map(writer.write, events)).decode()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def whole(op: Chat, events: list[Event]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COHERE.write(fold(events), op).body)
    return found


def test_thinking_is_shown_unless_it_was_disabled() -> None:
    events = reply(part(0, "thinking", "Hm"), part(1, "text", "42"))
    assert whole(asked(), events)["message"]["content"] == [
        {"type": "thinking", "thinking": "Hm"},
        {"type": "text", "text": "42"},
    ]
    quiet = asked(thinking={"type": "disabled"})
    assert whole(quiet, events)["message"]["content"] == [{"type": "text", "text": "42"}]
    kinds = [one["type"] for one in streamed(asked(), events)]
    assert kinds == ["message-start", *["content-start", "content-delta", "content-end"] * 2, "message-end"]
    assert [one["type"] for one in streamed(quiet, events)].count("content-start") == 1


def test_what_is_said_beside_calls_is_the_plan() -> None:
    events = reply(part(0, "text", "I look."), part(1, "tool", '{"a":', "1}"), reason="tool_calls")
    message = whole(asked(), events)["message"]
    assert message["tool_plan"] == "I look."
    assert "content" not in message
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    last = [one for one in streamed(asked(), events) if one["type"] == "tool-call-delta"][-1]
    assert last["delta"]["message"]["tool_calls"]["function"]["arguments"] == "", "LangChain takes it twice"


@pytest.mark.parametrize(
    ("reason", "stop", "word"),
    [
        ("stop", None, "COMPLETE"),
        ("stop", "END", "STOP_SEQUENCE"),
        ("stop", 7, "COMPLETE"),
        ("length", None, "MAX_TOKENS"),
        ("content_filter", None, "ERROR"),
        ("tool_calls", None, "COMPLETE"),
    ],
)
def test_reasons(reason: str, stop: Any, word: str) -> None:
    events = reply(part(0, "text", "a"), reason=reason, stop=stop)
    assert whole(asked(), events)["finish_reason"] == word
    assert streamed(asked(), events)[-1]["delta"]["finish_reason"] == word


def test_calls_that_were_cut_are_no_calls_to_make() -> None:
    events = reply(part(0, "tool", '{"a'), reason="length")
    assert whole(asked(), events)["finish_reason"] == "MAX_TOKENS"


def test_usage_is_always_there() -> None:
    counts = {"input_tokens": 3, "output_tokens": 9}
    told = whole(asked(), reply(part(0, "text", "a"), usage=Usage(3, 9, cached=2)))["usage"]
    assert told == {"billed_units": counts, "tokens": counts, "cached_tokens": 2}
    none = dict.fromkeys(counts, 0)
    assert streamed(asked(), reply(part(0, "text", "a")))[-1]["delta"]["usage"] == {
        "billed_units": none,
        "tokens": none,
    }


def test_an_empty_answer_has_a_block() -> None:
    assert whole(asked(), reply())["message"]["content"] == [{"type": "text", "text": ""}]
    kinds = [one["type"] for one in streamed(asked(), reply())]
    assert kinds == ["message-start", "content-start", "content-end", "message-end"]


def test_parts_side_by_side_are_blocks_one_after_the_other() -> None:
    both: list[Event] = [
        PartStart(0, 0, "thinking"),
        PartStart(0, 1, "text"),
        Delta(0, 0, "a"),
        Delta(0, 1, "b"),
        Delta(0, 0, "c"),
        PartEnd(0, 0),
        PartEnd(0, 1),
    ]
    writer = COHERE.writer(asked())
    heard = hear_cohere(b"".join(map(writer.write, reply(both))))
    assert (heard.of(0).thinking, heard.of(0).text) == ("ac", "b")


def test_log_probabilities_have_the_ids_that_are_known() -> None:
    def token(text: str) -> Raw:
        return Raw(json.dumps([{"token": text, "logprob": -0.5, "bytes": [], "top_logprobs": []}]).encode())

    inner: list[Event] = [
        PartStart(0, 0, "text"),
        Delta(0, 0, "a", (7,), token("a")),
        Delta(0, 0, "", (), token("")),
        PartEnd(0, 0),
    ]
    op = asked(logprobs=True)
    wanted = [
        {"text": "a", "token_ids": [7], "logprobs": [-0.5]},
        {"text": "", "token_ids": [], "logprobs": [-0.5]},
    ]
    assert whole(op, reply(inner))["logprobs"] == wanted
    deltas = [one for one in streamed(op, reply(inner)) if one["type"] == "content-delta"]
    assert [one["logprobs"] for one in deltas] == wanted


def test_lines() -> None:
    op = asked(b"application/json")
    writer = COHERE.writer(op)
    assert dict(writer.headers)[b"content-type"] == b"application/stream+json"
    assert writer.keepalive() == b" "
    text = b"".join(map(writer.write, reply(part(0, "text", "a\u2028", "b"))))
    kinds = [json.loads(line)["type"] for line in text.decode().splitlines()]
    assert kinds == ["message-start", "content-start", *["content-delta"] * 2, "content-end", "message-end"]
    assert COHERE.writer(asked(b"application/json, text/event-stream")).keepalive() == b"\n"


@pytest.mark.parametrize(("kind", "word"), [(Kind.TRUNCATED, "ERROR"), (Kind.TIMEOUT, "TIMEOUT")])
def test_a_failure_ends_the_message(kind: Kind, word: str) -> None:
    events = [*reply(part(0, "text", "a"))[:-4], Failed(GatewayError(kind, "it broke"))]
    writer = COHERE.writer(asked())
    stream = b"".join(map(writer.write, events))
    assert not writer.clean_end
    heard = hear_cohere(stream)
    assert (heard.complete, heard.error) == (False, "it broke")
    assert f'"finish_reason":"{word}"'.encode() in stream
    assert b"[DONE]" not in stream


def test_a_refusal_names_the_field_as_the_client_does() -> None:
    error = GatewayError(Kind.UNSUPPORTED, "'top_p' cannot be executed", param="top_p")
    request = Request("POST", "/v2/chat", [], b'{"p":0.5}', route="chat", id="r")
    response, code = COHERE.refuse(error, request, None)
    told = json.loads(response.body)
    assert told == {"message": "'p' cannot be executed", "code": code, "param": "p", "id": "r"}


# -- models -----------------------------------------------------------------------------------------------------------

CARDS = [
    ModelCard("a", 1, True, 4096, features=frozenset({"tools"})),
    ModelCard("b", 1, True, features=frozenset({"embeddings"})),
    ModelCard("c", 1, True, features=frozenset({"scores"})),
    ModelCard("d", 1, True),
]


def listed(query: bytes) -> Any:
    op = COHERE.read(Request("GET", "/v1/models", [], b"", query, "models"))
    assert isinstance(op, ListModels)
    return json.loads(op.write(CARDS).body)


def test_models_by_endpoint_and_page() -> None:
    def names(query: bytes) -> list[str]:
        return [one["name"] for one in listed(query)["models"]]

    assert names(b"") == ["a", "b", "c", "d"]
    assert names(b"endpoint=chat") == ["a", "d"]
    assert names(b"endpoint=embed") == ["b"]
    assert names(b"endpoint=rerank") == ["c"]
    first = listed(b"page_size=3")
    assert (len(first["models"]), first["next_page_token"]) == (3, "3")
    assert names(b"page_size=3&page_token=3") == ["d"]
    assert listed(b"")["models"][0]["context_length"] == 4096
    assert "context_length" not in listed(b"")["models"][1]


@pytest.mark.parametrize(("query", "param"), [(b"page_size=x", "page_size"), (b"page_token=-1", "page_token")])
def test_pages_that_are_none(query: bytes, param: str) -> None:
    assert raised(lambda: listed(query)).param == param


def test_the_default_model_alone() -> None:
    op = COHERE.read(Request("GET", "/v1/models", [], b"", b"default_only=true&endpoint=chat", "models"))
    assert isinstance(op, ListModels)
    assert op.one
