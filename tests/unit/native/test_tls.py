"""The native relay of a worker that speaks TLS: its reads come from the TLS layer of the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from bench.backend import Worker
from bench.replies import wanted
from gateway.native import BUILT
from gateway.transport.connection import WorkerConnection
from tests.support.harness import Stack
from tests.support.standins.serving import certificate, server_tls

pytestmark = pytest.mark.skipif(not BUILT, reason="needs the native relay")
CHUNKS = 100


def test_a_worker_that_speaks_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certificate(tmp_path)
    context = server_tls(files)
    passed, updated = [0], WorkerConnection.buffer_updated

    def counted(self: WorkerConnection, nbytes: int) -> None:
        passed[0] += 1
        updated(self, nbytes)

    monkeypatch.setattr(WorkerConnection, "buffer_updated", counted)

    async def serve() -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Worker(loop), "127.0.0.1", 0, ssl=context)

    texts, reads = [], []
    for native in (False, True):
        monkeypatch.setattr(Stack, "native", native)
        with Stack() as stack:
            server = stack.run(serve())
            port = server.sockets[0].getsockname()[1]
            model = {"backend": "vllm", "ca_file": str(files[0]), "workers": [f"https://127.0.0.1:{port}"]}
            stack.run(stack.gateway.reload(stack.config({"models": {"m": model}})))
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": wanted(CHUNKS)}]}
            passed[0] = 0
            reply = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60)
            texts.append(reply.text)
            reads.append(passed[0])
            stack.run(_closed(server))
    assert texts[0] == texts[1]
    assert texts[1].count("lorem") == CHUNKS
    assert texts[1].endswith("data: [DONE]\n\n")
    assert reads[1] < reads[0] / 4, "most reads were relayed"


async def _closed(server: asyncio.Server) -> None:
    server.close()
