"""Large requests: they are read and written while others are served."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.backends.vllm import Vllm
from gateway.dialects.openai import OpenAI
from tests.harness import Stack
from tests.test_server import Raw, chat, post, until

URL = "/v1/chat/completions"
LARGE = chat("a" * (1 << 20))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"max_model_len": 1 << 30},)) as running:
        yield running


class Held:
    """Steps of large requests wait here until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def around(self, step: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            if size(*given) >= 1 << 20:
                self.entered.set()
                assert self.go.wait(10)
            return step(*given)

        return held


@pytest.fixture(params=["read", "written"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    if request.param == "read":
        monkeypatch.setattr(OpenAI, "read", held.around(OpenAI.read, lambda _, asked: len(asked.body)))
    else:
        monkeypatch.setattr(Vllm, "write", held.around(Vllm.write, lambda _, op, __: len(bytes(op.raw["messages"]))))
    yield held
    held.go.set()


def test_others_are_served_meanwhile(stack: Stack, held: Held) -> None:
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(httpx.post(stack.url + URL, json=LARGE).status_code))
    asking.start()
    assert held.entered.wait(5)
    assert httpx.post(stack.url + URL, json=chat()).status_code == 200
    held.go.set()
    asking.join()
    assert statuses == [200]


def test_who_leaves_meanwhile_is_let_go(stack: Stack, held: Held) -> None:
    before = len(stack.records())
    body_budget = stack.gateway.state.runtime.body_budget
    with Raw(stack) as client:
        client.send(post(LARGE))
        assert held.entered.wait(5)
        assert body_budget.reserved > 1 << 20
    until(lambda: not stack.gateway.state.runtime.running.runs)
    assert body_budget.reserved == 0
    assert [record["outcome"] for record in stack.records()[before:]] == ["cancelled"]


def test_what_is_wrong_with_it_is_told_as_ever(stack: Stack) -> None:
    for content, code in ((json.dumps(LARGE)[:-1], "invalid_json"), (json.dumps({**LARGE, "n": "x"}), "invalid_value")):
        reply = httpx.post(stack.url + URL, content=content, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
