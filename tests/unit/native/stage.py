"""One stream on a stage: a whole gateway between a client and a worker that are byte strings, with and without the
native relay. A script says what the worker sends in which reads, and what the client and the connections do.

async with Stage() as stage:
    python, native = await stage.play(script, native=False), await stage.play(script, native=True)
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import uvicorn
from msgspec import Struct
from uvicorn.server import ServerState

from bench.backend import Worker
from gateway.app import Gateway
from gateway.config import Listen
from gateway.core.errors import GatewayError, Kind
from gateway.observe.log import Log
from gateway.server.protocol import protocol_class
from gateway.transport.connection import WorkerConnection
from gateway.transport.pooled import Origin
from gateway.wire import clock
from tests.support.harness import Captured, load_text

Step = bytes | Literal["turn", "pause", "resume", "leave", "eof", "lost", "interrupt"]
"""A read from the worker; or a turn of the event loop; the client reads too slowly, reads again, or leaves; the worker
ends its connection, or it breaks; the gateway ends the reply."""
Asked = tuple[str, dict[str, Any]]
"""The path of the client's request, and members of its body."""
CHAT: Asked = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True})

_VARIES = re.compile(
    rb"date: [^\r]*|(?<=call_)[0-9a-f]{24}|(?<=cmpl-)[0-9a-f-]{24,36}|(?<=one-)[0-9a-f]{16}"
    rb'|"created":17\d{8}|"(?:created|completed)_at":(?:17\d{8}|"20[^"]*")'
)
"""Dates, and ids that the gateway makes."""
_CHECKSUM = re.compile(rb"(?<=\n\n)[\s\S]{4}(?=\r\n|\0\0)")
"""Of a message of an Amazon event stream, whose text may have them."""
CONFIG = """\
health: {{interval_s: 3600, timeout_s: 600, stalled_s: 0}}
breaker: {{failures: 10000}}
retry: {{attempts: 2, wait_s: 0, min_per_second: 10000}}
relay: {{keepalive_s: 0, max_reply_bytes: 9000, native: {native}}}
models:
  m: {{backend: vllm, upstream_model: sim, workers: ["http://127.0.0.1:{port}"]}}
"""


class Outcome(Struct):
    """What could be seen of one play.

    sent      to the client, by the turns of the loop
    ended     how its connection did
    held      reads that the gateway did not take, by the turns
    worker    the connection of the worker: kept for another request, or dropped
    lane      (output deltas, the text that is kept) by the turns
    gaps      between pieces, counted
    record    of the request, without times
    relayed   reads that the native relay took
    """

    sent: list[bytes]
    ended: str
    held: list[int]
    worker: str
    lane: list[Any]
    gaps: int
    record: dict[str, Any]
    relayed: int = 0


class Pipe:
    """A transport that collects what is sent in `written`, and gives `reads` to its protocol while that reads."""

    def __init__(self, protocol: Any) -> None:
        self.written = bytearray()
        self.reads: deque[bytes] = deque()
        self.closing = ""
        self.delivered = 0
        self._protocol = protocol
        self._reading = True
        self._socket, self._other = socket.socketpair()
        self._loop = asyncio.get_running_loop()
        protocol.connection_made(self)

    def deliver(self, all_at_once: bool = False) -> bool:
        """Hands over the next read, or all of them. A loop makes one read of a connection in a turn, unless it is as
        large as its buffer. False if there was none before."""
        delivered = self.delivered
        while self.reads and self._reading and not self.closing and (all_at_once or self.delivered == delivered):
            read = self.reads.popleft()
            room = self._protocol.get_buffer(len(read))
            size = min(len(read), len(room))
            room[:size] = read[:size]
            if size < len(read):
                self.reads.appendleft(read[size:])
            self._protocol.buffer_updated(size)
            self.delivered += 1
        return self.delivered > delivered

    def end(self) -> None:
        """The other side ends the connection in order."""
        if not self._protocol.eof_received():
            self.close()

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.written += data

    def writelines(self, blocks: Sequence[bytes]) -> None:
        self.write(b"".join(blocks))

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self._socket, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return bool(self.closing)

    def abort(self) -> None:
        self._end("aborted")

    def close(self) -> None:
        self._end("closed")

    def lose(self, error: Exception | None) -> None:
        """The connection breaks."""
        self._end("lost", error)

    def _end(self, how: str, error: Exception | None = None) -> None:
        if not self.closing:
            self.closing = how
            self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
        self._socket.close()
        self._other.close()

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True


class Stage:
    """Two gateways, of which one may relay natively. Use it as a context."""

    async def __aenter__(self) -> Stage:
        loop = asyncio.get_running_loop()
        self._clock, clock.nanoseconds = clock.nanoseconds, lambda: 1
        self._server = await loop.create_server(lambda: Worker(loop), "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        self._output = {native: Captured() for native in (False, True)}
        self._gateways = {}
        self._logs = {native: Log("info", out=out) for native, out in self._output.items()}
        for native, log in self._logs.items():
            text = CONFIG.format(port=self._port, native=str(native).lower())
            self._gateways[native] = Gateway(load_text(text), log)
            await self._gateways[native].start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for native, gateway in self._gateways.items():
            await gateway.close()
            self._logs[native].close()
        self._server.close()
        clock.nanoseconds = self._clock

    async def play(
        self, script: Sequence[Step], native: bool, asked: Asked = CHAT, all_at_once: bool = False
    ) -> Outcome:
        """Plays `script` on a fresh stream.

        asked        the client's request
        all_at_once  reads without a turn between them come in one turn; else the worker's next read comes in the next
        """
        loop, gateway = asyncio.get_running_loop(), self._gateways[native]
        active = gateway.deployment.runtime.active.requests
        gaps = gateway.deployment.runtime.models["m"].gaps
        counted = sum(gaps.counts)
        pooled, address = gateway.deployment.transports["m"], f"http://127.0.0.1:{self._port}"
        origin = pooled.origins.get(address) or Origin(pooled, address)
        pooled.origins[address] = origin
        worker = _Counting(origin)
        upstream = Pipe(worker)
        worker.since = loop.time()
        origin.keep(worker)
        protocol = protocol_class(Listen(), gateway.refused)
        config = uvicorn.Config(gateway, http=protocol, interface="asgi3", log_config=None, proxy_headers=False)
        client = protocol(config, ServerState(), {}, loop)
        down = Pipe(client)
        path, body = asked
        client.data_received(_request(path, json.dumps({"model": "m", **body}).encode()))
        for _ in range(100):  # on a busy machine it may take longer
            await _turns()
            if upstream.written:
                break
        assert upstream.written, f"the request is not at the worker: {bytes(down.written)!r}"
        (handler,) = active
        outcome = Outcome([], "", [], "", [], 0, {})
        sent = 0
        for step in [*script, "turn", "resume", "turn", "eof", "turn", "leave", "turn"]:
            if isinstance(step, bytes):
                upstream.reads.append(step)
            elif step == "turn":
                while upstream.deliver(all_at_once):
                    await _turns()
                await _turns()
                said = _CHECKSUM.sub(b"", down.written[sent:]) if "response-stream" in path else down.written[sent:]
                outcome.sent.append(_VARIES.sub(b"", said))
                sent = len(down.written)
                outcome.held.append(len(upstream.reads))
                lane = handler.lane
                outcome.lane.append(None if lane is None else (lane.produced, lane.usage, lane.partial()))
                outcome.ended = down.closing
            elif step in ("pause", "resume"):
                if not down.closing and client.write_paused is (step == "resume"):
                    getattr(client, f"{step}_writing")()
            elif step == "leave":
                down.lose(None)
            elif step == "interrupt":
                if handler in active:
                    handler.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down"))
            elif (
                not upstream.reads and not upstream.closing and handler in active
            ):  # else the end is behind what is still to be read
                upstream.end() if step == "eof" else upstream.lose(ConnectionResetError())
            if step in ("leave", "eof", "lost", "interrupt"):
                await _turns()
        await gateway.deployment.runtime.active.empty(5)
        outcome.worker = upstream.closing or ("kept" if worker in origin.idle else "open")
        outcome.relayed = upstream.delivered - worker.taken
        outcome.gaps = sum(gaps.counts) - counted
        assert upstream.closing or upstream.get_protocol() is worker, "the connection has its place again"
        worker.drop()
        down.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._logs[native].flush()
        record = [line for line in self._output[native].lines() if line["event"] == "request"][-1]
        outcome.record = {name: value for name, value in record.items() if name != "time" and not name.endswith("ms")}
        return outcome


async def _turns() -> None:
    """What was read is taken in, requests go on, and what they wrote is sent."""
    for _ in range(3):
        await asyncio.sleep(0)


def _request(path: str, body: bytes) -> bytes:
    fields = b"host: x\r\nx-request-id: one\r\ncontent-type: application/json\r\ncontent-length: %d" % len(body)
    return b"POST %b HTTP/1.1\r\n" % path.encode() + fields + b"\r\n\r\n" + body


class _Counting(WorkerConnection):
    """taken: reads that came to it."""

    taken = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.taken += 1
        super().buffer_updated(nbytes)
