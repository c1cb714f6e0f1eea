"""`uvicorn gateway.asgi:app`: another server, and the same answers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.app.asgi import application
from gateway.config import ConfigError
from tests.support.harness import HEALTH, load_text, until
from tests.support.simulated import Simulated
from tests.support.standins.serving import elsewhere

KEY = "a-key-that-is-long-enough"
AUTH = {"authorization": f"Bearer {KEY}"}
CHAT: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


class Served:
    """uvicorn in a process of its own, with one simulated worker."""

    def __init__(self, sim: Simulated, process: subprocess.Popen[str]) -> None:
        self.sim = sim
        self.process = process
        assert process.stderr is not None
        begun = []
        for line in process.stderr:
            begun.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError("".join(begun))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("asgi")
    with elsewhere(lambda: Simulated(models=("org/m",))) as sim:
        (folder / "gateway.yaml").write_text(
            json.dumps(
                {
                    "health": HEALTH,
                    "listen": {"max_body_bytes": 100_000},
                    "keys": {"team": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}},
                    "models": {"org/m": {"backend": "vllm", "workers": [sim.url]}},
                }
            )
        )
        command = [sys.executable, "-m", "uvicorn", "gateway.asgi:app", "--port", "0"]
        environ = {**os.environ, "DRAGOMAN_CONFIG": str(folder / "gateway.yaml")}
        with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
            yield Served(sim, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)


def post(served: Served, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    return httpx.post(served.url + path, json=body, headers={**AUTH, **headers}, timeout=30)


def test_whole_replies_of_several_dialects(served: Served) -> None:
    assert post(served, CHAT).json()["choices"][0]["message"]["content"]
    assert post(served, CHAT, "/v1/messages").json()["content"][0]["text"]
    contents = {"contents": [{"parts": [{"text": "hello"}]}]}
    found = post(served, contents, "/v1beta/models/org%2Fm:generateContent")  # an encoded slash separates nothing
    assert found.json()["candidates"], found.text
    assert httpx.get(served.url + "/v1/models/org%2Fm", headers=AUTH).json()["id"] == "org/m"
    assert httpx.get(served.url + "/readyz").text == "ready\n"


def test_a_stream(served: Served) -> None:
    reply = post(served, {**CHAT, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_worker(served: Served, stream: bool) -> None:
    before = served.sim.ledger.aborted
    served.sim.fault("stall@1" if stream else "stall", 1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            served.url + "/v1/chat/completions",
            json={**CHAT, "stream": stream},
            headers=AUTH,
            timeout=httpx.Timeout(30, read=0.5),
        )
    until(lambda: served.sim.ledger.aborted == before + 1)
    served.sim.fault("")


def test_refusals(served: Served) -> None:
    large = post(served, {**CHAT, "user": "x" * 100_000})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    refused = post(served, CHAT, authorization="Bearer another-key-that-is-long")
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert httpx.get(served.url + "/v1/nothing", headers=AUTH).status_code == 404


def test_a_web_socket(served: Served) -> None:
    url = served.url.replace("http", "ws") + "/v1/responses"
    with connect(url, additional_headers=AUTH) as socket:
        for _ in range(2):
            socket.send(json.dumps({"type": "response.create", "model": "org/m", "input": "hello"}))
            events = [json.loads(socket.recv(30))]
            while events[-1]["type"] not in ("response.completed", "error"):
                events.append(json.loads(socket.recv(30)))
            assert events[-1]["type"] == "response.completed", events[-1]
    with pytest.raises(InvalidStatus) as caught:
        connect(url)
    assert caught.value.response.status_code == 401
    assert "authentication_error" in (caught.value.response.body or b"").decode()


async def test_a_configuration_for_the_own_server_alone_is_refused() -> None:
    text = "metrics: {listen: '127.0.0.1:9'}\nmodels: {m: {backend: vllm, workers: ['http://w:1']}}\n"
    app = application(lambda: load_text(text))
    with pytest.raises(ConfigError, match=r"metrics\.listen: needs `dragoman serve`"):
        async with app.router.lifespan_context(app):
            pass


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "listen: {prot: 1}\nmodels: {m: {backend: vllm, workers: [w]}}\n",
            ["listen.prot", "models.m.workers.0"],
        ),
        ("models: {m: {backend: vllm, workers: ['http://w:1'], api_key_env: NOT_SET}}\n", ["models.m.api_key_env"]),
        (
            "metrics: {listen: '127.0.0.1:9'}\nmodels: {m: {backend: vllm, workers: ['http://w:1']}}\n",
            ["metrics.listen"],
        ),
    ],
)
async def test_the_server_gets_the_faults_and_no_traceback(text: str, faults: list[str]) -> None:
    app, sent = application(lambda: load_text(text)), []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    with pytest.raises(ConfigError) as caught:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert caught.value.__context__ is None  # nor does one who catches it see another error before it
    assert [one["type"] for one in sent] == ["lifespan.startup.failed"]
    first, *lines = sent[0]["message"].splitlines()
    assert first == "the configuration has faults:"
    assert [line.split(": ")[1] for line in lines] == faults
    assert lines == [str(fault) for fault in caught.value.faults]


def test_a_middleware_and_a_mount_of_starlette_s() -> None:
    """Requests pass what is put around the application, whose prefix is none of the gateway's."""
    text = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}\nhealth: {timeout_s: 0.1}\n"
    inner = application(lambda: load_text(text))

    async def count(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-counted"] = "yes"
        return response

    inner.add_middleware(BaseHTTPMiddleware, dispatch=count)

    @asynccontextmanager
    async def lifespan(outer: Starlette) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    outer = Starlette(routes=[Mount("/llm", inner)], lifespan=lifespan)
    with TestClient(outer) as client:
        listed = client.get("/llm/v1/models")
        assert (listed.json()["data"][0]["id"], listed.headers["x-counted"]) == ("m", "yes")
        assert client.get("/llm/v1/models/m%2Fn").status_code == 404


@pytest.mark.parametrize("raw", [None, f"/llm/k/{KEY}/v1/models".encode()])
async def test_what_the_specification_lets_a_server_leave_out(raw: bytes | None) -> None:
    keys = f"path_keys: true\nkeys: {{a: {{hash: 'sha256:{sha256(KEY.encode()).hexdigest()}'}}}}"
    app = application(lambda: load_text(f"models: {{m: {{backend: vllm, workers: ['http://127.0.0.1:9']}}}}\n{keys}"))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "headers": [], "path": f"/llm/k/{KEY}/v1/models", "root_path": "/llm"}
    async with app.router.lifespan_context(app):
        await app({**scope, "raw_path": raw, "scheme": "http", "query_string": b""}, receive, send)
        post = {"method": "POST", "path": f"/llm/k/{KEY}/v1/chat/completions", "raw_path": None}
        await app({**scope, **post, "scheme": "http", "query_string": b""}, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [200, 400]


async def test_web_sockets_that_open_at_once_are_bounded() -> None:
    """The server accepts a handshake after the look for room: of two that had some, one alone goes on."""
    text = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:9']}}\nlisten: {max_sockets: 1}\n"
    app = application(lambda: load_text(text))
    both, over = asyncio.Barrier(2), asyncio.Event()
    raw = {"raw_path": None, "query_string": b"", "root_path": "", "scheme": "ws"}
    scope: dict[str, Any] = {"type": "websocket", "headers": [], "path": "/v1/responses", "extensions": {}, **raw}

    async def opened() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            if not sent:
                return {"type": "websocket.connect"}
            await over.wait()
            return {"type": "websocket.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "websocket.accept":
                await both.wait()
            else:
                over.set()

        await app(scope.copy(), receive, send)
        return sent

    async with app.router.lifespan_context(app), asyncio.timeout(30):
        for _ in range(2):  # then the bound is what it was
            over.clear()
            first, second = await asyncio.gather(opened(), opened())
            assert sorted(one.get("code", 0) for one in first + second) == [0, 0, 1013]
