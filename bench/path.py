"""`python -m bench.path`: the way of a request through the gateway, counted in steps of the interpreter.

A gateway runs in this process between a client and workers that are byte strings, as in `bench.inside`. One warm
request goes through it under a profile hook. The counts are the same on every machine, whatever else it does, so
`tests/repo/test_path.py` holds them to bounds. Code in C, such as the native relay and the HTTP parsers, has no steps.

    calls      of Python functions in `gateway/`; a coroutine that goes on counts again
    files      of the gateway in which a function ran
    moves      calls from one of these files into another
    deepest    most frames of the gateway on the stack
    bytecodes  steps in functions of the gateway
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import Context
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeVarTuple, cast
from unittest.mock import patch

import uvicorn
import uvloop
from msgspec import Struct
from msgspec.structs import replace
from uvicorn.server import ServerState

from bench.backend import CHUNK, OPENING, TAIL, WHOLE, Worker
from bench.inside import HASH, KEY, LIMITS, Pipe, with_keys
from bench.replies import MODEL
from bench.rows import PHRASE, ROWS, Row
from gateway.app import KNOWN, Gateway
from gateway.config import Listen, load
from gateway.observe.log import Log
from gateway.ratelimit.redis import leases
from gateway.ratelimit.redis.leases import LIFE
from gateway.server.protocol import HttpProtocol, protocol_class
from gateway.transport.connection import WorkerConnection
from gateway.transport.pooled import Origin

CHUNKS = 10
PERIOD = 16
"""Requests while a lease lasts. The next lease is for twice as many."""
WARM = 2 * PERIOD + 1
"""Requests that are not counted. The last of them takes a lease."""
REPEATS = 7
_MOST_ROUNDS = 1_000_000
"""Of the loop, in which a gateway must have written."""
_EMBEDDING = json.dumps(
    {
        "id": "embd-1",
        "object": "list",
        "created": 1763720000,
        "model": MODEL,
        "data": [{"index": 0, "object": "embedding", "embedding": [number / 1024 for number in range(384)]}],
        "usage": {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0, "prompt_tokens_details": None},
    }
).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
_WHOLE = {**WHOLE, b"/v1/embeddings": _HEAD % len(_EMBEDDING) + _EMBEDDING}


class Way(Struct, frozen=True):
    """A request, and the gateway that it goes through.

    row      the request
    backend  of the worker
    workers  how many
    more     more of the configuration
    redis    there is one, in which limits are counted
    """

    row: Row
    backend: str = "vllm"
    workers: int = 1
    more: str = ""
    redis: bool = False


def _row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


_RULES, _, _ = LIMITS.partition("limiter:")
_EMBED = json.dumps({"model": MODEL, "input": PHRASE * 8}).encode()
WAYS = {
    "chat": Way(_row("openai → vllm plain")),
    "chat with limits": Way(_row("openai → vllm plain"), more=LIMITS),
    "chat with limits in Redis": Way(_row("openai → vllm plain"), more=_RULES, redis=True),
    "chat to 4 workers": Way(_row("openai → vllm plain"), workers=4),
    "chat to 200 workers": Way(_row("openai → vllm plain"), workers=200),
    "stream with limits and prefix": Way(_row("openai → vllm stream"), workers=2, more=LIMITS),
    "anthropic stream to llama.cpp": Way(_row("anthropic → vllm stream"), "llamacpp"),
    "embedding": Way(Row("openai → vllm embedding", "plain", "/v1/embeddings", _EMBED)),
}


class Counts(Struct, frozen=True):
    """See the module."""

    calls: int
    files: int
    moves: int
    deepest: int
    bytecodes: int


class Recorder:
    """What runs in the gateway between `start` and `stop`: `functions` in order, and the deepest stack."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, str, int]] = []
        self.bytecodes = 0

    def start(self, count_bytecodes: bool) -> None:
        if count_bytecodes:
            sys.settrace(self._entered)
        else:
            sys.setprofile(self._called)

    def stop(self) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := _file_of(frame)) is not None:
            self.functions.append((name, frame.f_code.co_qualname, _depth(frame)))

    def _entered(self, frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, object], Any] | None:
        if _file_of(frame) is None:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: object) -> Callable[[FrameType, str, object], Any]:
        self.bytecodes += event == "opcode"
        return self._stepped

    def counts(self, bytecodes: int) -> Counts:
        files = [name for name, _, _ in self.functions]
        return Counts(
            calls=len(files),
            files=len(set(files)),
            moves=sum(one != other for one, other in pairwise(files)),
            deepest=max(depth for *_, depth in self.functions),
            bytecodes=bytecodes,
        )


def _file_of(frame: FrameType) -> str | None:
    """The name inside `gateway/`; None for code of others."""
    _, found, name = frame.f_code.co_filename.rpartition("/gateway/")
    return name if found else None


def _depth(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += _file_of(frame) is not None
        frame = frame.f_back
    return count


_Ts = TypeVarTuple("_Ts")


class UntimedLoop(uvloop.Loop):
    """A loop whose timers do nothing while they are `held`. The gateway looks ten times a second how late its loop
    is: on a busy machine such a tick came into every request that was counted."""

    held = False

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_later(delay, self._due, callback, args, context=context)

    def _due(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        if not self.held:
            callback(*args)


class Clock:
    """Monotonic seconds that stand still while they are `held`: leases and shares last for parts of a second, and
    requests take as long on a busy machine."""

    def __init__(self) -> None:
        self.held: float | None = None
        self.real = time.monotonic

    def __call__(self) -> float:
        return self.real() if self.held is None else self.held


class Carrier:
    """One connection of a client to a gateway, and one of the gateway to each of its workers."""

    def __init__(self, gateway: Gateway, ports: Sequence[int], way: Way) -> None:
        loop = asyncio.get_running_loop()
        request = way.row.request("bench").replace(b"\r\n", f"\r\nauthorization: Bearer {KEY}\r\n".encode(), 1)
        self._request, self._stream = request, way.row.kind == "stream"
        protocol = protocol_class(Listen(), gateway.refused)
        config = uvicorn.Config(gateway, http=protocol, interface="asgi3", log_config=None, proxy_headers=False)
        self._client: HttpProtocol = protocol(config, ServerState(), {}, loop)
        self._client.connection_made(cast("asyncio.Transport", pipe := Pipe(self._client)))
        self._out = pipe
        self._workers: list[Pipe] = []
        pooled = gateway.deployment.transports[MODEL]
        for port in ports:
            address = f"http://127.0.0.1:{port}"
            origin = pooled.origins[address] = Origin(pooled, address)
            worker = WorkerConnection(origin)
            worker.connection_made(cast("asyncio.Transport", pipe := Pipe(worker)))
            worker.since = loop.time()
            origin.keep(worker)
            self._workers.append(pipe)

    async def carry(self) -> None:
        """One request and its whole reply, each event of a stream in a block of its own."""
        self._client.data_received(self._request)
        await self._until(lambda: any(pipe.written for pipe in self._workers))
        (pipe,) = (one for one in self._workers if one.written)
        path = bytes(pipe.written.split(b" ", 2)[1])
        pipe.written.clear()
        blocks = [OPENING[path], *[CHUNK[path]] * CHUNKS, TAIL[path]] if self._stream else [_WHOLE[path]]
        for block in blocks:
            reader = cast(Any, pipe.protocol)  # not always the connection: see gateway/native
            reader.get_buffer(len(block))[: len(block)] = block
            reader.buffer_updated(len(block))
            for _ in range(3):  # rounds of the loop until the event is out
                await asyncio.sleep(0)
        await self._until(lambda: self._done(bytes(self._out.written)))
        self._out.written.clear()

    def _done(self, written: bytes) -> bool:
        if written and not written.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"not a 200: {written[:600]!r}")
        return written.endswith(b"0\r\n\r\n") if self._stream else bool(written)

    async def _until(self, condition: Callable[[], bool]) -> None:
        rounds = 0
        while not condition():
            rounds += 1
            if rounds > _MOST_ROUNDS:
                raise SystemExit("the gateway did not write")
            await asyncio.sleep(0)

    def close(self) -> None:
        for pipe in (self._out, *self._workers):
            cast(Any, pipe.protocol).connection_lost(None)
            pipe.abort()


async def count(way: Way, folder: Path, clock: Clock) -> tuple[Counts, list[tuple[str, str, int]]]:
    """The counts of one request, and its functions in order: (file, name, depth). Each count is the least of REPEATS,
    because a second may end within one, and a reply's `date` is made anew."""
    loop = asyncio.get_running_loop()
    timers = cast(UntimedLoop, loop)
    servers = [await loop.create_server(lambda: Worker(loop), "127.0.0.1", 0) for _ in range(way.workers)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    workers = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
    text = f"auth: keys\nkeys: {{bench: {{hash: '{HASH}'}}}}\n"
    text += f"models:\n  {MODEL}: {{backend: {way.backend}, workers: [{workers}]}}\n"
    text += "breaker: {slowstart_s: 0}\n"  # whose steps depend on the time
    (folder / "gateway.yaml").write_text(text + way.more)
    out = (folder / "log").open("wb", buffering=0)
    log = Log("info", out=out)
    gateway = Gateway(load(folder / "gateway.yaml", KNOWN), log)
    await gateway.start()
    carrier = Carrier(gateway, ports, way)
    found: list[tuple[Counts, list[tuple[str, str, int]]]] = []
    timers.held = True
    clock.held = clock()
    try:
        for _ in range(WARM):
            await carrier.carry()
            clock.held += LIFE / PERIOD
        for _ in range(REPEATS):
            called, stepped = Recorder(), Recorder()
            for recorder in (called, stepped):
                recorder.start(recorder is stepped)
                try:
                    await carrier.carry()
                finally:
                    recorder.stop()
            found.append((called.counts(stepped.bytecodes), called.functions))
    finally:
        timers.held, clock.held = False, None
        carrier.close()
        await gateway.close()
        log.close()
        out.close()
        for server in servers:
            server.close()
    least = {name: min(getattr(counts, name) for counts, _ in found) for name in Counts.__struct_fields__}
    return Counts(**least), min((functions for _, functions in found), key=len)


def counted(way: Way) -> tuple[Counts, list[tuple[str, str, int]]]:
    """See `count`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if way.redis:
            (address,) = stack.enter_context(with_keys(Path(folder), ())).addresses
            way = replace(way, more=f"{way.more}redis: {{url: 'redis://{address}', timeout_s: 10}}\n")
        clock = Clock()
        stack.enter_context(patch.object(time, "monotonic", clock))
        stack.enter_context(patch.object(leases, "monotonic", clock))
        return uvloop.run(count(way, Path(folder), clock), loop_factory=UntimedLoop)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.path", description=__doc__.partition("\n")[0])
    parser.add_argument("--functions", choices=list(WAYS), metavar="WAY", help="print the functions of it in order")
    options = parser.parse_args(arguments)
    if options.functions is not None:
        for file, name, depth in counted(WAYS[options.functions])[1]:
            print(f"{'  ' * (depth - 1)}{name}  {file}")
        return 0
    width = max(map(len, WAYS))
    print(f"{'':{width}}  " + "  ".join(f"{name:>9}" for name in Counts.__struct_fields__))
    for name, way in WAYS.items():
        counts, _ = counted(way)
        figures = (getattr(counts, field) for field in Counts.__struct_fields__)
        print(f"{name:{width}}  " + "  ".join(f"{figure:>9,}" for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
