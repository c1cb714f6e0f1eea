"""A request that a chat template refuses is the client's fault, though many servers answer it with a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.backends import REGISTRY, create
from gateway.core.errors import Blame, Kind
from gateway.core.http import Response
from tests.clients import DIALECTS, usual
from tests.harness import Stack
from tests.sampled import sampled
from tests.standins.serving import Answering, serving
from tests.wire.test_chat_templates import BROKEN, LONG, TOLD

STATUSES = (400, 404, 422, 500)
BACKENDS = sorted(REGISTRY)


def answered(text: str, status: int, backend: str = "openai") -> Response:
    error = {"code": status, "message": text, "type": "server_error"}
    body = {"error": text, "error_type": "template_error"} if backend == "tgi" else {"error": error}
    return Response(status, [], json.dumps(body).encode())


CASES = [(backend, status, source) for backend in BACKENDS for status in STATUSES for source in TOLD]


@pytest.mark.parametrize(("backend", "status", "source"), sampled(CASES, 5, of=lambda case: (case[0], case[2])))
def test_the_cause_is_the_clients_to_read(backend: str, status: int, source: str) -> None:
    text, cause = TOLD[source]
    error = create(backend).fault(answered(text, status, backend))
    assert (error.kind, error.blame, error.param) == (Kind.BAD_REQUEST, Blame.CLIENT, "messages")
    assert cause in error.message
    assert not any(word in error.message for word in ("\n", "mmproj", "llmworker", "My Models"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_other_500_is_the_workers(backend: str) -> None:
    for text in BROKEN:
        assert create(backend).fault(answered(text, 500, "openai")).blame is Blame.WORKER


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cause_is_not_as_long_as_what_a_client_sent(backend: str) -> None:
    for text in LONG:
        assert len(create(backend).fault(answered(text, 500, backend)).message) < 2000


CHATS = [way for way in map(usual, DIALECTS) if way.operation == "chat"]


class Refusing(Answering):
    """Answers chats as llama-server does, and streams as LM Studio does: by an event of a 200."""

    asked: list[Any]

    def do_GET(self) -> None:
        self.answer(200, b"{}")

    def do_POST(self) -> None:
        self.asked.append(asked := json.loads(self.posted()))
        text, _ = TOLD["LM Studio" if asked.get("stream") else "llama.cpp"]
        told = answered(text, 500)
        if asked.get("stream"):
            said = b"event: error\ndata: " + json.dumps({"error": {"message": text}}).encode() + b"\n\n"
            self.answer(200, said, **{"content-type": "text/event-stream"})
        else:
            self.answer(told.status, told.body)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "tgi"])
def test_it_is_a_400_asked_once_and_ejects_nobody(backend: str) -> None:
    """One client's twenty such requests took a healthy worker from all others."""

    class Worker(Refusing):
        asked: list[Any] = []

    with serving(Worker) as one, serving(Worker) as other:
        models = {"m": {"backend": backend, "workers": [one, other]}}
        with Stack((), {"models": models, "routing": {"scrape_s": 0}}) as stack:
            for stream in (False, True):
                for way in CHATS:
                    reply = httpx.post(stack.url + way.path("m"), json=way.body(model="m", stream=stream), timeout=60)
                    assert "System message must be at the beginning." in reply.text
                    assert reply.status_code // 100 == 4, (way, stream, reply.text)
            assert len(Worker.asked) == 2 * len(CHATS) > 20
            workers = stack.gateway.deployment.fleets.models["m"].pool.workers
            assert [(worker.breaker.generation, worker.breaker.failures) for worker in workers] == [(0, 0)] * 2
