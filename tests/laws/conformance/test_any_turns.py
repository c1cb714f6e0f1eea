"""Whatever turns an agent's conversation has, its model is told all of them, in an order that chat templates take."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends
from gateway.core.ports import Capabilities
from gateway.translation.offline import send
from tests.laws.conformance.cases import BACKENDS, DIALECTS
from tests.laws.conformance.clients import TURNS, openai
from tests.laws.conformance.clients.heard import PNG, Turn
from tests.support.sampled import sampled


def turns(seed: int, *, between: bool) -> list[Turn]:
    """Calls of a round are all answered, in any order. System turns may come anywhere, also between results if
    `between`. Texts are `<number>`."""
    random = Random(seed)
    found: list[Turn] = []
    called = 0

    def text() -> str:
        return f"<{len(found)}>"

    def system() -> None:
        if random.random() < 0.25:
            found.append(("system", text()))

    system()
    for _ in range(random.randint(1, 4)):
        for _ in range(random.randint(1, 3)):
            found.append(("user", text()))
            system()
        for _ in range(random.randint(0, 3)):
            if random.random() < 0.5:
                found.append(("say", text()))
            asked = list(range(called, called + random.randint(1, 3)))
            called += len(asked)
            for number in asked:
                found.append(("call", number, text()))
            system()
            for number in random.sample(asked, len(asked)):
                found.append(("result", number, text(), random.random() < 0.2))
                if between:
                    system()
            system()
        if random.random() < 0.8:
            found.append(("say", text()))
            system()
    return [*found, ("user", text())]


CAN = Capabilities("w")
CHATS = tuple(name for name, dialect in DIALECTS.items() if "chat" in dialect.fields)


def told_to(backend: str, name: str, found: list[Turn], can: Capabilities = CAN) -> list[dict[str, Any]]:
    """The messages that a worker gets of a client of the dialect `name`."""
    body = json.dumps(TURNS.get(name, openai.write_turns)(found)).encode()
    example = DIALECTS[name].examples["chat"][0]
    sent = send(DIALECTS[name], BACKENDS[backend], body, can, route=example.route, query=example.query)
    messages: list[dict[str, Any]] = json.loads(sent.outgoing.body)["messages"]
    return messages


@pytest.mark.parametrize(("name", "backend"), sampled(product(CHATS, backends.REGISTRY), 4, lambda case: case[0]))
@given(seed=st.integers(0, 2**32))
def test_all_is_told_in_turns(name: str, backend: str, seed: int) -> None:
    found = turns(seed, between=name != "anthropic")
    if name == "gemini":  # its contents have no system turns
        found = [turn for turn in found if turn[0] != "system"]
    if name == "cohere":  # its results have no images
        found = [(*turn[:3], False) if turn[0] == "result" else turn for turn in found]
    told = told_to(backend, name, found)
    roles = [one["role"] for one in told]
    assert not {"system", "developer"} & {*roles[1:]}, "only at the start"
    assert roles[0] != "developer"
    assert ("user", "user") not in pairwise(roles)
    # Nothing is lost, doubled or moved before what was said earlier by others.
    texts = re.findall(r"<\d+>", json.dumps(told))
    assert sorted(texts) == sorted(one[2] if one[0] in ("call", "result") else one[1] for one in found)
    said = re.findall(r"<\d+>", json.dumps([one for one in told if one["role"] != "user"]))
    assert [text for text in said if text in by(found, "say", "call")] == by(found, "say", "call")
    assert [text for text in texts if text in by(found, "user")] == by(found, "user")
    assert json.dumps(told).count(PNG) == sum(one[3] for one in found if one[0] == "result")
    # Results follow their calls at once, each with its own id.
    answers = {f"c{one[1]}": one[2] for one in found if one[0] == "result"}
    assert {one["tool_call_id"]: one["content"] for one in told if one["role"] == "tool"} == answers
    for before, after in pairwise(told):
        if after["role"] == "tool":
            assert before["role"] == "tool" or before.get("tool_calls")


def by(found: list[Turn], *kinds: str) -> list[str]:
    """The texts of these kinds, in order."""
    return [one[2] if one[0] == "call" else one[1] for one in found if one[0] in kinds]


@pytest.mark.parametrize("name", [name for name in CHATS if name not in ("gemini", "responses")])
@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_messages_stay_as_sent_where_the_model_takes_them(name: str, backend: str) -> None:
    found: list[Turn] = [("system", "<0>"), ("system", "<1>"), ("user", "<2>"), ("system", "<3>"), ("user", "<4>")]
    told = told_to(backend, name, found, Capabilities("w", system="keep"))
    asked = json.loads(json.dumps(TURNS.get(name, openai.write_turns)(found)))["messages"]
    texts = [one["content"] for one in told]
    if name == "anthropic":
        assert [part["text"] for one in asked for part in one["content"]] == texts
    else:
        assert [one["content"] for one in asked] == texts
    assert [one["role"] for one in told] == [one["role"] for one in asked]


_OBJECTS = ("anthropic", "gemini")
TEXTS = tuple(name for name in CHATS if name not in _OBJECTS)
"""The dialects in whose histories arguments are text; those of the others are objects already."""
SAID: dict[str | None, str] = {
    '{"a":1}': '{"a":1}',
    "": "{}",
    "null": "{}",
    None: "{}",
    '{"a': '{"_raw":"{\\"a"}',
    "[1]": '{"_raw":"[1]"}',
    "NaN": '{"_raw":"NaN"}',
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_arguments_in_a_history_are_objects(name: str, backend: str) -> None:
    """A call that was cut by length must not make every later request of its conversation a 400."""
    calls: list[dict[str, Any]] = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": text}} for n, text in enumerate(SAID)
    ]
    items: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls
    ]
    messages = [{"role": "assistant", "content": None if name != "ollama" else "", "tool_calls": calls}]
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}, *messages]}
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
    asked["messages"] += answers
    if name == "responses":
        asked = {"input": [*items, *({"type": "function_call_output", "call_id": one["id"]} for one in calls)]}
    body = json.dumps({"model": "m", **asked}).encode()
    route, query = "invocations" if name == "sagemaker" else "chat", b"api-version=2024-05-01-preview"
    sent = send(DIALECTS[name], BACKENDS[backend], body, CAN, route=route, query=query)
    (former,) = [one["tool_calls"] for one in json.loads(sent.outgoing.body)["messages"] if one.get("tool_calls")]
    assert [call["function"]["arguments"] for call in former] == list(SAID.values())
    assert len({call["id"] for call in former}) == len(SAID)
