"""Cohere's clients: a stream of events, and one of lines."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.http import Headers, Response
from tests.laws.conformance.clients import openai
from tests.laws.conformance.clients.heard import Client, Heard, HeardChoice, Turn, events

_LINES: Headers = [(b"accept", b"application/json")]


def hear_cohere(stream: bytes) -> Heard:
    """As strictly as the strictest client: one begin, one block open at a time, indices without gaps, one end."""
    found = events(stream)
    done = [data for _, data in found].count("[DONE]")
    assert done == 0 or found[-1] == ("", "[DONE]")
    said = found[:-1] if done else found
    for kind, data in said:
        assert json.loads(data)["type"] == kind
    heard = _hear([json.loads(data) for _, data in said])
    assert heard.complete == bool(done)
    return heard


def hear_lines(stream: bytes) -> Heard:
    assert not stream or stream.endswith(b"\n")
    assert b"\r" not in stream
    return _hear([json.loads(line) for line in stream.decode().split("\n")[:-1]])


def _hear(found: list[dict[str, Any]]) -> Heard:
    heard = Heard()
    choice = heard.of(0)
    begun = False
    blocks = calls = -1
    member = ""
    opened: str | None = None
    for said in found:
        kind = said["type"]
        assert not heard.complete, "something follows message-end"
        assert heard.error is None, "something follows an error"
        delta = said.get("delta", {})
        if kind == "message-start":
            assert not begun
            begun = True
            assert said["id"]
            assert delta["message"]["role"] == "assistant"
        elif kind == "message-end":
            assert opened is None
            _hear_end(heard, delta)
        elif kind.startswith("content"):
            content = delta["message"]["content"] if delta else {}
            if kind == "content-start":
                assert begun
                assert opened is None, "two blocks are open"
                opened, blocks, member = "content", blocks + 1, content["type"]
                assert member in ("text", "thinking")
            elif kind == "content-delta":
                assert opened == "content"
                assert content.keys() == {member}
                _add(choice, member, content[member])
                choice.logprobs += _measured(said.get("logprobs"))
            else:
                assert opened == "content"
                opened = None
            assert said["index"] == blocks
        elif kind == "tool-call-start":
            assert opened is None
            opened, calls = "call", calls + 1
            assert said["index"] == calls
            call = delta["message"]["tool_calls"]
            assert call["type"] == "function"
            choice.calls.append([call["id"], call["function"]["name"], call["function"]["arguments"]])
        elif kind == "tool-call-delta":
            assert (opened, said["index"]) == ("call", calls)
            more = delta["message"]["tool_calls"]["function"]["arguments"]
            choice.calls[-1][2] = (choice.calls[-1][2] or "") + more
        else:
            assert kind == "tool-call-end"
            assert (opened, said["index"]) == ("call", calls)
            opened = None
    return heard


def _add(choice: HeardChoice, member: str, text: str) -> None:
    if member == "text":
        choice.text += text
    else:
        choice.thinking += text


def _measured(said: dict[str, Any] | None) -> list[list[Any]]:
    if said is None:
        return []
    assert isinstance(said["token_ids"], list)
    assert len(said["logprobs"]) == 1, "one token in each delta"
    return [[said["text"], said["logprobs"][0]]]


def _hear_end(heard: Heard, delta: dict[str, Any]) -> None:
    usage = delta["usage"]
    assert usage["billed_units"] == usage["tokens"], "both have what the worker counted"
    heard.usage = usage["tokens"]["input_tokens"], usage["tokens"]["output_tokens"]
    heard.error = delta.get("error")
    heard.complete = heard.error is None
    if heard.complete:
        heard.of(0).finish = delta["finish_reason"]
    else:
        assert delta["finish_reason"] in ("ERROR", "TIMEOUT")


def read_cohere(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard()
    choice, message = heard.of(0), reply["message"]
    assert reply["id"]
    assert message["role"] == "assistant"
    for block in message.get("content", ()):
        _add(choice, block["type"], block[block["type"]])
    choice.text += message.get("tool_plan", "")
    for call in message.get("tool_calls", ()):
        assert call["type"] == "function"
        choice.calls.append([call["id"], call["function"]["name"], call["function"]["arguments"]])
    assert message.get("content") or message["tool_calls"], "clients read the first block of an answer"
    for item in reply.get("logprobs", ()):
        choice.logprobs += _measured(item)
    _hear_end(heard, reply)
    return heard


def refused_cohere(response: Response) -> str:
    told = json.loads(response.body)
    assert isinstance(told["message"], str)
    assert told["code"]
    return str(told["message"])


def _in_coheres_words(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of Cohere's API."""
    names = {"stop": "stop_sequences"}
    found = {names.get(name, name): value for name, value in body.items() if name != "stream_options"}
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if "tool_choice" in found:
        choice = found.pop("tool_choice")
        if choice in ("none", "required"):
            found["tool_choice"] = choice.upper()
    return found


def write_turns(found: list[Turn]) -> dict[str, Any]:
    """Its roles lack the developer, and its results images."""
    body = openai.write_turns(found)
    for message in body["messages"]:
        message["role"] = message["role"].replace("developer", "system")
        if isinstance(message["content"], list):
            message["content"] = message["content"][0]["text"]
    return body


_COHERE = {
    "n": "a reply has one message",
    "stop": "it does not name the sequence that matched",
    "usage": "it always has counts: those that nobody told are 0",
    "refusal": "a refusal is the message's text",
}
_ENDS = {
    "stop": "COMPLETE",
    "stop_sequence": "STOP_SEQUENCE",
    "length": "MAX_TOKENS",
    "tool_calls": "TOOL_CALL",
    "content_filter": "ERROR",
}


def _client(name: str, *, lines: bool) -> Client:
    return Client(
        name,
        "cohere",
        "chat",
        "/v2/chat",
        "chat",
        hear_lines if lines else hear_cohere,
        read_cohere,
        refused_cohere,
        blind=_COHERE,
        words=_ENDS,
        headers=_LINES if lines else [],
        own=_in_coheres_words,
    )


CLIENTS: tuple[Client, ...] = (_client("cohere", lines=False), _client("cohere lines", lines=True))
