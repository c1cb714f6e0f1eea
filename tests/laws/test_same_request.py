"""The same conversation through every dialect is one canonical request, and one request to the worker: so limits,
affinity and metrics see one thing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest

from gateway import dialects
from gateway.core.http import Request
from gateway.core.messages import Chat
from gateway.core.ports import Settings
from tests.laws.fidelity.matrix import BACKENDS, CAN, DIALECTS, asking
from tests.support.clients import like_openai, usual
from tests.support.harness import Stack

CHATS = [name for name in DIALECTS if like_openai(name)]
CONVERSATION: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "How are you? 👋🏽"},
    ],
}
SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 16, "seed": 7, "stop": ["END"]}
PENALTIES: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": 0.25}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "tool_choice": "auto",
}
ASKED: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "sampled": SAMPLING,
    "penalised": {**SAMPLING, **PENALTIES},
    "streamed": {**SAMPLING, "stream": True},
    "with tools": {**SAMPLING, **TOOLS},
    "as JSON": {**SAMPLING, "response_format": {"type": "json_object"}},
}
# What a dialect's specification promises of what is absent, and the gateway therefore says aloud.
PROMISED: Mapping[str, dict[str, Any]] = {
    # "temperature: Non-negative number. Return 422 if unsupported"; defaults as in Microsoft's API definition.
    "azure_inference": {"temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    # "Defaults to 1.0", "The default value is 0", "Defaults to 1.0".
    "friendli": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
}
# What says how the request came and how its reply is written, and not what is asked.
OWN = {
    "raw": "the client's own members, for a worker of the client's wire",
    "wire": "that wire's name",
    "view": "the form of the reply",
    "memo": "what the reply needs of the request",
    "model_hints": "names in the path and in headers that may choose the model",
}


def body(asked: str) -> dict[str, Any]:
    return {**CONVERSATION, **ASKED[asked]}


def canonical(dialect: str, asked: str) -> Chat:
    op = DIALECTS[dialect].read(asked_of(dialect, body(asked)))
    assert isinstance(op, Chat)
    return op


def asked_of(dialect: str, given: dict[str, Any]) -> Request:
    return asking(DIALECTS[dialect].examples["chat"][0], given)


def meaning(op: Chat, dialect: str, asked: str) -> dict[str, Any]:
    """What is asked, without what this dialect promises of what the client did not say."""
    found = {name: value for name, value in msgspec.structs.asdict(op).items() if name not in OWN}
    sampling = msgspec.structs.asdict(op.sampling)
    for name, default in PROMISED.get(dialect, {}).items():
        if name not in ASKED[asked]:
            assert sampling[name] == default, f"{dialect} promises {name} {default}"
            sampling[name] = None
    found["sampling"] = sampling
    return found


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("dialect", CHATS)
def test_one_canonical_request(dialect: str, asked: str) -> None:
    assert meaning(canonical(dialect, asked), dialect, asked) == meaning(canonical("openai", asked), "openai", asked)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_request_to_each_kind_of_worker(dialect: str, asked: str, backend: str) -> None:
    """With all that dialects promise said by the client, nothing is left to differ."""
    promised = {name: value for defaults in PROMISED.values() for name, value in defaults.items() if name != "top_k"}
    if backend == "tgi":
        promised = {name: value for name, value in promised.items() if name != "presence_penalty"}
        if ASKED[asked].get("presence_penalty") or "response_format" in ASKED[asked]:
            pytest.skip("beyond TGI's chats")
    given = {**body(asked), **{name: value for name, value in promised.items() if name not in body(asked)}}
    sent = []
    for name in (dialect, "openai"):
        op = DIALECTS[name].read(asked_of(name, given))
        assert isinstance(op, Chat)
        outgoing = BACKENDS[backend].write(op, CAN)
        found = json.loads(outgoing.body)
        # 0 and 1 turn filters and penalties off, whether they are said or not.
        for field, neutral in (("top_k", 0), ("frequency_penalty", 0), ("presence_penalty", 0), ("repeat_last_n", -1)):
            if found.get(field) == neutral:
                del found[field]
        sent.append((outgoing.path, found))
    assert sent[0] == sent[1]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_the_simulated_worker_gets_one_request(stack: Stack, stream: bool) -> None:
    """Through the whole gateway; the same tokens are counted and the same model is named, whoever asks."""
    promised = {name: value for defaults in PROMISED.values() for name, value in defaults.items() if name != "top_k"}
    received, records = [], []
    for dialect, path in ((name, usual(name).path()) for name in CHATS):
        if dialect not in dialects.REGISTRY:
            continue
        reply = httpx.post(stack.url + path, json={**promised, **body("sampled"), "stream": stream}, timeout=30)
        assert reply.status_code == 200, reply.text
        got = json.loads(stack.sim.entries[-1].body)
        if not stream:
            got.pop("stream", None)  # false, and absent, are the same
        if got.get("top_k") == 0:
            del got["top_k"]
        received.append(got)
        record = stack.records()[-1]
        records.append((record["model"], record["operation"] if dialect != "sagemaker" else "chat", record["usage"]))
    assert all(got == received[0] for got in received), received
    assert all(record == records[0] for record in records), records


def test_what_is_promised_is_of_a_dialect() -> None:
    assert set(PROMISED) <= set(dialects.REGISTRY)
    assert all(dialects.create(name, Settings()).fields["chat"] for name in PROMISED)
