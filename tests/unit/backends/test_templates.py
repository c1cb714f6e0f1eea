"""A request that a chat template refuses is the client's fault, though many servers answer it with a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.backends import REGISTRY, create
from gateway.config import Breaker
from gateway.core.errors import Blame, Kind
from gateway.core.http import Response
from gateway.fleet.standing import Standing
from gateway.fleet.worker import Worker
from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack
from tests.support.sampled import sampled
from tests.support.standins.serving import Answering, serving
from tests.unit.wire.test_chat_templates import BROKEN, LONG, TOLD

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


@pytest.mark.parametrize("status", [500, 400, 200])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_does_not_learn_where_workers_are(backend: str, status: int) -> None:
    """A worker's text for the client may name its address, and those of its siblings. 200: by an event of a stream."""
    places: list[str] = []

    class Worker(Refusing):
        def do_POST(self) -> None:
            self.posted()
            text = (
                f"Jinja Exception: no at {places[0]}/v1 ({places[1].removeprefix('http://')}), host 127.0.0.1, 1:1 ok"
            )
            told = answered(text, status or 500, backend)
            if status == 200:
                said = b"event: error\ndata: " + json.dumps({"error": {"message": text}}).encode() + b"\n\n"
                self.answer(200, said, **{"content-type": "text/event-stream"})
            else:
                self.answer(told.status, told.body)

    with serving(Worker) as one, serving(Worker) as other:
        places += [one, other]
        models = {"m": {"backend": backend, "workers": [one, other]}}
        with Stack((), {"models": models, "routing": {"scrape_s": 0, "explain": "never"}}) as stack:
            for way in CHATS:
                if not way.answers(stream=status == 200):
                    continue
                body = way.body(model="m", stream=status == 200)
                reply = httpx.post(stack.url + way.path("m"), json=body, timeout=60)
                assert "127.0.0.1" not in reply.text, (way, reply.text)
                assert not any(place.rpartition(":")[2] in reply.text for place in places), (way, reply.text)
                if status != 200 or backend != "tgi":  # whose streams have events of their own
                    assert "no at http://***/v1 (***), host ***, 1:1 ok" in reply.text, (way, reply.text)


@pytest.mark.parametrize(
    ("address", "text", "shown"),
    [
        ("http://vllm:8000", "vllm: at vllm:8000 and vllm:80", "vllm: at *** and vllm:80"),
        ("https://GPU-1.example/v1", "gpu-1.example:443, gpu-1.example.", "***, ***."),
        ("http://[fd00::1]:8000", "http://[fd00::1]:8000/x [fd00::1]", "http://***/x ***"),
        ("http://10.0.0.5:8000", "10.0.0.5 10.0.0.51 x10.0.0.5 10.0.0.5:9", "*** 10.0.0.51 x10.0.0.5 ***"),
        ("http://vllm:8000", "é" + "a_" * 50_000 + "-" * 50_000, "é" + "a_" * 50_000 + "-" * 50_000),
    ],
)
def test_the_spellings_of_a_place(address: str, text: str, shown: str) -> None:
    assert Standing([Worker(address, Breaker(), None)]).masked(text) == shown
