"""Streams that break off at a worker and go on at another one."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import httpx

from gateway.core.errors import GatewayError, Kind
from gateway.core.moves import STALLED
from tests.laws.conformance.clients import CLIENTS, Heard
from tests.support.clients import Way
from tests.support.harness import Stack, until
from tests.unit.kernel.asking import PATH

TEXT = "Ein naïver Gruß an 漢字 und 🎉 fünf Wörter mehr."

ROUND = {
    "models": {"m": {"policy": "round_robin"}},
    "retry": {"min_per_second": 100, "wait_s": 60},
    "breaker": {"failures": 1000},
}


def posted(stack: Stack, path: str, body: dict[str, Any]) -> bytes:
    """The stream, whole or cut."""
    received = b""
    with (
        contextlib.suppress(httpx.RemoteProtocolError),
        httpx.stream("POST", stack.url + path, json=body, timeout=60) as reply,
    ):
        for block in reply.iter_raw():
            received += block
    return received


def heard(way: Way, stream: bytes) -> list[Heard]:
    """As each client of that dialect understands it, if it is whole."""
    found = []
    for client in CLIENTS:
        if (client.dialect, client.operation) == (way.dialect, way.operation):
            with contextlib.suppress(Exception):  # another client's form
                said = client.hear(stream)
                if said.complete:
                    found.append(said)
    return found


def broken_once(
    stack: Stack, fault: str, path: str, body: dict[str, Any], deaths: int = 1
) -> tuple[bytes, dict[str, Any]]:
    """A stream that so many workers break, one after the other, and its record."""
    for _ in range(2 * len(stack.sims)):  # until the workers' turns are so
        for sim in stack.sims[:deaths]:
            sim.fault(fault, 1)
        stream = posted(stack, path, body)
        record = stack.record()
        if record["attempts"] == deaths + 1 or record["outcome"] != "ok":
            break
    for sim in stack.sims:
        sim.fault("")
    return stream, record


class Streaming:
    """A stream, in a thread of its own, whose worker stalls after two tokens."""

    def __init__(self, stack: Stack, body: dict[str, Any]) -> None:
        self._stack, self._body = stack, body
        for sim in stack.sims:
            sim.fault("stall@2", 1)
        self._thread = threading.Thread(target=self._ask)
        self.stream = b""
        self._thread.start()
        until(lambda: self.stream.count(b"content") >= 2 or self.stream.count(b"tool_calls") >= 1)
        (self.sim,) = [sim for sim in stack.sims if sim.ledger.running]
        for sim in stack.sims:
            sim.fault("")

    def _ask(self) -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", self._stack.url + PATH, json=self._body, timeout=60) as reply,
        ):
            for block in reply.iter_raw():
                self.stream += block

    def leave(self, code: str = STALLED) -> int:
        async def leaving() -> int:
            deployment = self._stack.gateway.deployment
            (worker,) = [one for one in deployment.pools["m"].workers if one.address == self.sim.url]
            return deployment.offers.leave_worker(
                deployment.runtime.active, worker, GatewayError(Kind.UPSTREAM, "it stalls", code=code)
            )

        return self._stack.run(leaving())

    def whole(self) -> bytes:
        self._thread.join(60)
        return self.stream


def text_of(stream: bytes) -> str:
    (said,) = [client.hear(stream) for client in CLIENTS if (client.dialect, client.operation) == ("openai", "chat")][
        :1
    ]
    assert said.complete
    return said.of(0).text
