"""How each dialect is asked the same thing, and what it answers: text, usage, why it ended."""

from __future__ import annotations

import json
import os
import random
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.core.messages import Chat
from tests.laws.conformance.clients import CLIENTS, Client
from tests.laws.fidelity.matrix import asking
from tests.support import clients
from tests.support.harness import sse_data

SEED = os.environ.get("SEED", "1")
QUESTION = "What is the capital of France?"
PROMPT = "The capital of France is"
# Operations that are greedy unless told to sample, and refuse a temperature of 0.
GREEDY = {("tgi", "complete")}
# The small model repeats it without end, as a chat and as a text, when greedy. What it ends by itself may be over
# before anybody looks.
ENDLESS = "List all the numbers from 1 to 500: " + ", ".join(map(str, range(1, 13))) + ","
"""The small model goes on counting, in a chat too, until it may say no more."""
MESSAGES = [{"role": "user", "content": QUESTION}]


class Answer(NamedTuple):
    """usage is (prompt tokens, completion tokens) or None where the dialect has no place for it."""

    text: str
    reason: str | None
    usage: tuple[int, int] | None


def _usage(found: dict[str, Any] | None) -> tuple[int, int] | None:
    return (found["prompt_tokens"], found["completion_tokens"]) if found else None


def chat_whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(choice["message"]["content"], choice["finish_reason"], _usage(body.get("usage")))


def text_whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(choice["text"], choice["finish_reason"], _usage(body.get("usage")))


def chunks(content: bytes) -> list[dict[str, Any]]:
    """The chunks of OpenAI's stream, its terminal mark checked."""
    data = list(sse_data(content))
    assert data[-1] == b"[DONE]"
    return [json.loads(one) for one in data[:-1]]


def friendli_events(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(one) for one in sse_data(content)]


def friendli_stream(content: bytes) -> Answer:
    *sampled, last = friendli_events(content)
    assert last["event"] == "complete"
    text = "".join(event["text"] for event in sampled)
    assert last["choices"][0]["text"] == text
    return Answer(text, last["choices"][0]["finish_reason"], _usage(last["usage"]))


class Way(NamedTuple):
    """One route of a dialect, and the client that understands its replies."""

    way: clients.Way
    client: Client

    @property
    def kind(self) -> str:
        return self.way.operation

    @property
    def templated(self) -> bool:
        """Whether the model reads its text by the chat template, whatever the operation is called."""
        read = clients.DIALECTS[self.way.dialect].read(asking(self.way.example, self.way.body(PROMPT, stream=False)))
        return isinstance(read, Chat)

    @property
    def path(self) -> str:
        return self.way.path("smollm2")

    def can(self, stream: bool) -> bool:
        return self.way.answers(stream=stream)

    def body(self, stream: bool, text: str | None = None, **fields: Any) -> dict[str, Any]:
        """Asks `text`, absent: what every way is asked. fields: by their names on OpenAI's wire."""
        if stream and self.way.field("stream_options") is not None:
            fields["stream_options"] = {"include_usage": True}
        if self.way.field("details") is not None:
            fields["details"] = True
        if fields.get("temperature") == 0 and (self.way.dialect, self.kind) in GREEDY:
            del fields["temperature"]
        text = text or (QUESTION if self.kind == "chat" else PROMPT)
        # A parameter of the path, or the default model, where the body names none.
        return self.way.body(text, stream=stream, **{"model": "smollm2", **fields})

    def ask(self, client: httpx.Client, stream: bool, text: str | None = None, **fields: Any) -> httpx.Response:
        return client.post(self.path, json=self.body(stream, text, **fields))

    def answer(self, response: httpx.Response, stream: bool) -> Answer:
        assert response.status_code == 200, response.text
        heard = (self.client.hear if stream else self.client.read)(response.content)
        assert heard.complete, heard
        return Answer(heard.choices[0].text, heard.choices[0].finish, heard.usage)


def _client(way: clients.Way) -> Client:
    """The one of this route, or of another route with the same wire."""
    found = [one for one in CLIENTS if (one.dialect, one.operation) == (way.dialect, way.operation)]
    return next((one for one in found if one.route == way.example.route), found[0])


# A request to compact asks the model for a summary, and has no room for an answer:
# tests/acceptance/engine/test_compaction.py.
WAYS: dict[str, Way] = {
    str(way): Way(way, _client(way))
    for way in clients.WAYS
    if way.operation in ("chat", "complete") and way.example.route != "compact"
}
CASES = {
    f"{name} {'streamed' if stream else 'whole'}": (way, stream)
    for name, way in WAYS.items()
    for stream in (False, True)
    if way.can(stream)
}
each_case = pytest.mark.parametrize(("way", "stream"), CASES.values(), ids=CASES)


def drawn_cases(law: str) -> pytest.MarkDecorator:
    """One case of each dialect, for a law whose code all of its ways share. Another SEED draws others."""
    found = [
        random.Random(f"{SEED} {law} {dialect}").choice(
            [name for name, (way, _) in CASES.items() if way.way.dialect == dialect]
        )
        for dialect in sorted({way.way.dialect for way in WAYS.values()})
    ]
    return pytest.mark.parametrize(("way", "stream"), [CASES[name] for name in found], ids=found)
