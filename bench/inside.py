"""`python -m bench.inside`: the CPU time of the gateway's own code for a request, without sockets.

A real gateway runs in this process, between a client and a worker that are byte strings: its server protocol gets
requests, its worker connections get replies. The work of the kernel and libuv for sockets is left out. Every line of
the gateway, both HTTP parsers, and asyncio's tasks, futures and callbacks are included.

The measured code is warm: nothing else runs between two requests. Under load other work displaces the code from the CPU
caches, and the same steps take longer. So use it for shares and differences. It is steadier than `make bench`, because
it reports the fastest of many batches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from operator import truediv
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
import uvicorn
import uvloop
from uvicorn.server import ServerState

from bench.backend import CHUNK, OPENING, WHOLE, Worker
from bench.process import Process, cores, free_port
from bench.replies import MODEL
from bench.rows import ROWS, Row, chat
from bench.subjects import redis_command
from gateway.app import KNOWN, Gateway
from gateway.auth import StoredKey
from gateway.auth.key_store import Event, KeyStore
from gateway.config import Config, Listen, Redis, load
from gateway.observe.log import Log
from gateway.redis import connect
from gateway.server.protocol import HttpProtocol, protocol_class
from gateway.transport.connection import WorkerConnection
from gateway.transport.pooled import Origin

CLIENTS = 32
TURNS = 20
LEAST_SHARE = 0.008
BLOCK = 256_000
"""Most bytes of one read: uvloop's buffer."""
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
HASH = f"sha256:{sha256(KEY.encode()).hexdigest()}"
CONFIG = """\
auth: keys
models:
  {model}: {{backend: vllm, workers: ["http://127.0.0.1:{port}"]}}
"""
LIMITS = """\
limits:
  - {name: requests, kind: requests, limit: 1000000000, scope: [key]}
  - {name: tokens, kind: tokens, limit: 100000000000, scope: [model]}
  - {name: concurrency, kind: concurrency, limit: 1000000, scope: [key, model]}
limiter: {store: memory}
"""
# What a gateway may be without -> more of its configuration with it, and without it.
PARTS = {
    "limits": (LIMITS, ""),
    "native": ("", "relay: {native: false}\n"),
    "keys_store": ("keys_store: redis\n", f'keys: {{bench: {{hash: "{HASH}"}}}}\n'),
}


class Pipe:
    """A transport that collects what is sent in `written`."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        self.written = bytearray()
        self.protocol = protocol
        # A real one: what asks the kernel about it is answered.
        self._socket, self._other = socket.socketpair()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, blocks: Sequence[bytes]) -> None:
        self.written += b"".join(blocks)

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self._socket, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self._socket.close()
        self._other.close()

    close = abort

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Sampler:
    """Samples the stack every millisecond of CPU time. shares: for each function of the gateway, the share of samples
    in which it, or a function that it called, was running."""

    def __init__(self) -> None:
        self._looks = 0
        self._found: Counter[str] = Counter()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        self._looks += 1
        under_way = set()
        while frame is not None:
            code = frame.f_code
            if (at := code.co_filename.find("/gateway/")) >= 0:
                under_way.add(f"{code.co_filename[at + 9 :]} {code.co_qualname}")
            frame = frame.f_back
        self._found.update(under_way)

    @property
    def shares(self) -> list[tuple[str, float]]:
        return [(name, count / self._looks) for name, count in self._found.most_common()]


class Inside:
    """The gateway, CLIENTS connections to it, and as many to its worker. They carry the requests of `row`."""

    def __init__(self, gateway: Gateway, port: int, row: Row) -> None:
        loop = asyncio.get_running_loop()
        own = re.sub(rb"authorization: [^\r]*\r\n", b"", row.request("bench"))  # a client's key that is not known here
        request = own.replace(b"\r\n", f"\r\nauthorization: Bearer {KEY}\r\n".encode(), 1)
        self._blocks = [request[at : at + BLOCK] for at in range(0, len(request), BLOCK)]
        self._stream = row.kind == "stream"
        self._path = b""  # at the worker
        protocol = protocol_class(Listen(), gateway.refused)
        config, state = (
            uvicorn.Config(gateway, http=protocol, interface="asgi3", log_config=None, proxy_headers=False),
            ServerState(),
        )
        self._clients: list[tuple[HttpProtocol, Pipe]] = []
        for _ in range(CLIENTS):
            client = protocol(config, state, {}, loop)
            client.connection_made(cast("asyncio.Transport", pipe := Pipe(client)))
            self._clients.append((client, pipe))
        self._workers: list[tuple[WorkerConnection, Pipe]] = []
        pooled, address = gateway.deployment.transports[MODEL], f"http://127.0.0.1:{port}"
        origin = pooled.origins[address] = Origin(pooled, address)
        for _ in range(CLIENTS):
            worker = WorkerConnection(origin)
            worker.connection_made(cast("asyncio.Transport", pipe := Pipe(worker)))
            worker.since = loop.time()
            origin.keep(worker)
            self._workers.append((worker, pipe))

    async def warm_up(self) -> None:
        if self._stream:
            await self._ask()
        for _ in range(50):
            await self.turn()

    async def turn(self) -> None:
        """Carries a request of every client, or a chunk of every stream."""
        if self._stream:
            await self._answer(CHUNK[self._path])
        else:
            await self._ask()

    async def _ask(self) -> None:
        for client, _ in self._clients:
            for block in self._blocks:
                client.data_received(block)
        await self._until(self._workers)
        for _, pipe in self._workers:
            self._path = bytes(pipe.written.split(b" ", 2)[1])
            pipe.written.clear()
        # Two chunks: a dialect may hold each back until the next.
        reply = OPENING[self._path] + 2 * CHUNK[self._path] if self._stream else WHOLE[self._path]
        await self._answer(reply, b"HTTP/1.1 200")

    async def _answer(self, data: bytes, begins: bytes = b"") -> None:
        size = len(data)
        for _, pipe in self._workers:
            reader = cast(Any, pipe.protocol)  # not always the connection: see gateway/native
            reader.get_buffer(size)[:size] = data
            reader.buffer_updated(size)
        await self._until(self._clients)
        for _, pipe in self._clients:
            if not pipe.written.startswith(begins):
                raise SystemExit(f"not a 200: {bytes(pipe.written[:600])!r}")
            pipe.written.clear()

    async def _until(self, ends: Sequence[tuple[object, Pipe]]) -> None:
        # Large bodies are read in a thread.
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if all(pipe.written for _, pipe in ends):
                return
            await asyncio.sleep(0)
        raise SystemExit("the gateway did not write")

    def close(self) -> None:
        for end, pipe in (*self._clients, *self._workers):
            end.connection_lost(None)
            pipe.abort()


async def put_keys(redis: Redis, keys: Sequence[str]) -> None:
    """Puts these secrets into the store, as an admin does."""
    store, now, me = KeyStore("dragoman", 1, connect(redis), redis.call_s), time.time(), "bench"
    for key in keys:
        name, digest = f"key-{key}", f"sha256:{sha256(key.encode()).hexdigest()}"
        stored = StoredKey(name=name, hash=digest, seal=digest, created=now, created_by=me, changed=now, changed_by=me)
        await store.change(stored, 0, Event(now, me, "create", name))
    await store.close()


@contextlib.contextmanager
def with_keys(directory: Path, keys: Sequence[str]) -> Iterator[Redis]:
    """Runs a Redis whose store has these keys."""
    port = free_port()
    process = Process("redis", redis_command(directory, port), cores()[1], directory / "redis.log")
    try:
        process.wait_listening(port)
        redis = Redis(addresses=(f"127.0.0.1:{port}",))
        uvloop.run(put_keys(redis, keys))
        yield redis
    finally:
        process.stop()


async def measure(
    row: Row, batches: int, seen: Sampler | None, directory: Path, mores: Sequence[str]
) -> list[list[float]]:
    """CPU microseconds for a request or a chunk, by gateway and batch. directory: for its files; seen: a sampler, if
    any; mores: of the configuration, for each gateway. Batches of several gateways are in turns."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Worker(loop), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    log = Log("info", out=(directory / "log").open("wb", buffering=0))
    gateways = [Gateway(configuration(directory / "gateway.yaml", port, more), log) for more in mores]
    insides: list[Inside] = []
    for gateway in gateways:
        await gateway.start()
    for gateway in gateways:
        insides.append(Inside(gateway, port, row))
        await insides[-1].warm_up()
    # As `dragoman serve` does.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    taken: list[list[float]] = [[] for _ in insides]
    if seen is not None:
        seen.start()
    for _ in range(batches):
        for inside, batch in zip(insides, taken, strict=True):
            began = time.process_time()
            for _ in range(TURNS):
                await inside.turn()
            batch.append((time.process_time() - began) / (TURNS * CLIENTS) * 1e6)
    if seen is not None:
        seen.stop()
    for inside, gateway in zip(insides, gateways, strict=True):
        inside.close()
        await gateway.close()
    log.close()
    server.close()
    return taken


def configuration(place: Path, port: int, more: str) -> Config:
    """Keys, one worker, and more."""
    place.write_text(CONFIG.format(model=MODEL, port=port) + more)
    return load(place, KNOWN)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.inside", description=__doc__.partition("\n")[0])
    parser.add_argument("--row", default=ROWS[0].name, choices=[row.name for row in ROWS])
    parser.add_argument("--batches", type=int, default=40, help=f"each of {TURNS * CLIENTS} requests or chunks")
    parser.add_argument("--size", type=int, metavar="BYTES", help="of the request, where it is OpenAI's")
    parser.add_argument("--python", action="store_true", help="without the native relay")
    parser.add_argument("--no-limits", action="store_true", help="without the three limits")
    parser.add_argument("--beside", choices=PARTS, help="in turns with a gateway without that, and the ratio to it")
    parser.add_argument("--ledger", action="store_true", help="also say which functions take it")
    options = parser.parse_args(arguments)
    row = next(row for row in ROWS if row.name == options.row)
    if options.size:
        row = msgspec.structs.replace(row, body=chat(row.kind == "stream", options.size))
    seen = Sampler() if options.ledger else None
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        stored = options.beside == "keys_store"
        redis = ""
        if stored:
            (address,) = stack.enter_context(with_keys(Path(directory), [KEY])).addresses
            redis = f'redis: {{addresses: ["{address}"]}}\n'
        without = {"limits"} if options.no_limits else set()
        without |= {"native"} if options.python else set()
        without |= set() if stored else {"keys_store"}
        sides = [without, *([without | {options.beside}] if options.beside else [])]
        mores = [redis + "".join(more[name in side] for name, more in PARTS.items()) for side in sides]
        taken, *others = uvloop.run(measure(row, options.batches, seen, Path(directory), mores))
    middle = statistics.median(taken)
    for name, share in seen.shares if seen is not None else ():
        if share >= LEAST_SHARE:
            print(f"{share * middle:6.1f} µs {share:6.1%}  {name}")
    print(f"{min(taken):.1f} µs at least, median {middle:.1f}, n {len(taken) * TURNS * CLIENTS:,}")
    for other in others:
        low, half, high = statistics.quantiles(map(truediv, taken, other), n=4)
        print(f"{half:.2f} (quartiles {low:.2f} to {high:.2f}) of {min(other):.1f} µs, without {options.beside}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
