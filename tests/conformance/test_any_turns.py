"""Whatever turns an agent's conversation has, its model is told all of them, in an order that chat templates take."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends
from gateway.core.ports import Capabilities
from gateway.translation.offline import send
from tests.conformance.cases import BACKENDS, DIALECTS
from tests.conformance.clients import TURNS
from tests.conformance.clients.heard import PNG, Turn


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


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("backend", backends.REGISTRY)
@given(seed=st.integers(0, 2**32))
def test_all_is_told_in_turns(name: str, backend: str, seed: int) -> None:
    found = turns(seed, between=name == "responses")
    if name == "gemini":  # its contents have no system turns
        found = [turn for turn in found if turn[0] != "system"]
    body = json.dumps(TURNS[name](found)).encode()
    route = DIALECTS[name].examples["chat"][0].route
    told = json.loads(send(DIALECTS[name], BACKENDS[backend], body, CAN, route=route).outgoing.body)["messages"]
    roles = [one["role"] for one in told]
    assert "system" not in roles[1:], "only at the start"
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


_OBJECTS = ("anthropic", "gemini")
CHATS = tuple(name for name, dialect in DIALECTS.items() if "chat" in dialect.fields and name not in _OBJECTS)
"""The dialects in whose histories arguments are text; those of the others are objects already."""
SAID = {'{"a":1}': '{"a":1}', "": "{}", '{"a': '{"_raw":"{\\"a"}', "[1]": '{"_raw":"[1]"}', "NaN": '{"_raw":"NaN"}'}


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("backend", backends.REGISTRY)
def test_arguments_in_a_history_are_objects(name: str, backend: str) -> None:
    """A call that was cut by length must not make every later request of its conversation a 400."""
    calls: list[dict[str, Any]] = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": text}} for n, text in enumerate(SAID)
    ]
    items: list[dict[str, Any]] = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls
    ]
    messages = [{"role": "assistant", "content": None if name != "ollama_native" else "", "tool_calls": calls}]
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
