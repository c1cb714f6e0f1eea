"""Friendli's clients."""

from __future__ import annotations

import json

from tests.laws.conformance.clients.heard import Client, Heard, events
from tests.laws.conformance.clients.openai import NO_STOP, OPENAI, hear_openai, refused_openai


def hear_friendli(stream: bytes) -> Heard:
    """As friendli-client: whatever comes before `complete` is a token, and `complete` says all once more."""
    heard = Heard()
    for kind, data in events(stream):
        assert not kind
        assert not heard.complete, "something follows complete"
        assert heard.error is None, "something follows an error"
        said = json.loads(data)
        if said["event"] == "token_sampled":
            assert set(said) == {"event", "index", "text", "token"}
            heard.of(said["index"]).text += said["text"]
        elif said["event"] == "error":
            heard.error = said["message"]
        else:
            assert said["event"] == "complete"
            assert "token" not in said
            whole = read_friendli(data.encode())
            for index, choice in whole.choices.items():
                assert choice.text == heard.of(index).text
            heard = whole
    return heard


def read_friendli(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=True)
    heard.usage = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
    for found in reply["choices"]:
        assert isinstance(found["seed"], int)
        assert all(isinstance(token, int) for token in found["tokens"])
        choice = heard.of(found["index"])
        choice.text, choice.finish = found["text"], found["finish_reason"]
    return heard


CLIENTS: tuple[Client, ...] = (
    Client("friendli chat", "friendli", "chat", "/v1/chat/completions", "chat", *OPENAI, {"content_filter": "stop"}),
    Client(
        "friendli completions",
        "friendli",
        "complete",
        "/v1/completions",
        "complete",
        hear_friendli,
        read_friendli,
        refused_openai,
        blind={
            **NO_STOP,
            "usage": "it is always there: what no worker told is counted",
            "logprobs": "asked by another name, and never streamed",
        },
        words={"content_filter": "stop"},
    ),
    Client(
        "friendli completions in chunks",
        "friendli",
        "complete",
        "/serverless/v1/completions",
        "chunks",
        hear_openai,
        read_friendli,
        refused_openai,
        blind={
            **NO_STOP,
            "usage": "a whole reply always has it, and a stream cannot ask for it",
            "logprobs": "asked by another name",
        },
        words={"content_filter": "stop"},
    ),
)
