"""`python -m bench.streams`: how late a token comes that passes the gateway, among ten thousand streams of a token a
second each.

Every chunk holds the moment at which the worker wrote it, by the clock that all processes of a machine share. The
streams begin evenly over the first seconds, so their tokens come evenly. The same is measured directly, without the
gateway, because the worker and the clients share a core and are late themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import uvloop
from msgspec import Struct

from bench.backend import OPENING, Worker, chunked
from bench.load import HOST
from bench.peers import load
from bench.peers.figures import proportional
from bench.process import BenchError, Process, Stopped, cores, cpu_seconds_now, free_port
from bench.replies import MARK, REPLIES
from bench.subjects import dragoman_command, dragoman_config

PATH = b"/v1/chat/completions"
EVERY_S = 1.0
OPENING_S = 20.0
SETTLE_S = 5.0
_SPARE = 200
_STAMP = re.compile(rb'" (\d+\.\d{6})"')
_BEFORE, _AFTER = REPLIES[PATH].chunk.split(MARK)


class _Clock(Worker):
    """A worker whose streams get a chunk every EVERY_S, which says when it was written."""

    def answer(self, path: bytes, body: bytes) -> None:
        if path != PATH:
            super().answer(path, body)
            return
        self.transport.write(OPENING[path])
        self.due = self.loop.time()
        self._stamp()

    def _stamp(self) -> None:
        self.transport.write(chunked(_BEFORE + b" %.6f" % time.monotonic() + _AFTER))
        # From the due time, not from now: lateness must not lower the rate.
        self.due += EVERY_S
        self.timer = self.loop.call_at(self.due, self._stamp)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Clock(loop), HOST, port, backlog=1024)
    await server.serve_forever()


class _Reader(asyncio.Protocol):
    """A client of one stream. Chunks that come in a piece are rare, and are not counted."""

    late: list[float] | None = None
    """Seconds, of all streams, while they are measured."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.began = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        if not self.began.done():
            self.began.set_result(data[9:12])
        if _Reader.late is not None:
            now = time.monotonic()
            _Reader.late.extend(now - float(stamp) for stamp in _STAMP.findall(data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.began.done():
            self.began.set_result(b"")


class Found(Struct):
    """What was measured on one way. late: seconds of each chunk, sorted; share of a core and KiB a stream: the
    gateway's, 0 without it."""

    late: list[float]
    share: float = 0.0
    kib: float = 0.0

    def percentile_ms(self, share: float) -> float:
        return self.late[min(int(len(self.late) * share), len(self.late) - 1)] * 1000


async def measure(port: int, streams: int, seconds: float, gateway: int | None) -> Found:
    """Opens `streams` on `port` and reads them for so long. gateway: the id of its process, if that is measured."""
    loop = asyncio.get_running_loop()
    data = load.request(PATH.decode(), {}, load.body(1024, 0))
    before = proportional(gateway) if gateway is not None else 0
    readers: list[_Reader] = []
    began = loop.time()
    for number in range(streams):
        Stopped.check()
        await asyncio.sleep(max(began + OPENING_S * number / streams - loop.time(), 0))
        readers.append((await loop.create_connection(lambda: _Reader(data), HOST, port))[1])
    if wrong := sum([await one.began != b"200" for one in readers]):
        raise BenchError(f"{wrong} of {streams} streams did not begin")
    await asyncio.sleep(SETTLE_S)
    grown = proportional(gateway) - before if gateway is not None else 0
    used, start = cpu_seconds_now(gateway) if gateway is not None else 0.0, time.monotonic()
    late: list[float] = []
    _Reader.late = late
    await asyncio.sleep(seconds)
    _Reader.late = None
    share = (cpu_seconds_now(gateway) - used) / (time.monotonic() - start) if gateway is not None else 0.0
    for one in readers:
        one.transport.abort()
    due = streams * seconds / EVERY_S
    if len(late) < 0.95 * due:
        raise BenchError(f"{len(late)} of {due:.0f} chunks came")
    return Found(sorted(late), share, grown / streams / 1024)


def run(streams: int, seconds: float, scratch: Path) -> tuple[Found, Found]:
    """(directly, through the gateway)."""
    measured, rest = cores()
    with ExitStack() as stack:
        port, worker = free_port(), free_port()
        words = [sys.executable, "-m", "bench.streams", "serve", "--port", str(worker)]
        backend = Process("worker", words, rest, scratch / "worker.log")
        stack.callback(backend.stop)
        backend.wait_listening(worker)
        command = dragoman_command(scratch, port, worker)
        config = dragoman_config(port, worker)
        config["listen"] = {"host": HOST, "port": port, "max_connections": streams + 50, "caller_share": 1}
        Path(command[-1]).write_text(json.dumps(config))
        gateway = Process("gateway", command, measured, scratch / "gateway.log")
        stack.callback(gateway.stop)
        gateway.wait_ready(f"http://{HOST}:{port}/readyz?model")
        directly = uvloop.run(measure(worker, streams, seconds, None))
        return directly, uvloop.run(measure(port, streams, seconds, gateway.popen.pid))


def raised(streams: int) -> int:
    """Raises the limit on open files; returns how many streams it allows, which take two in the gateway."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2 * streams + _SPARE if hard == resource.RLIM_INFINITY else min(hard, 2 * streams + _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return min(streams, (most - _SPARE) // 2)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("serve",), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=10_000, help="fewer if the limit on open files is too low")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they are read")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        uvloop.run(_serve(options.port))
        return 0
    Stopped.watch()
    streams = raised(options.streams)
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as scratch:
            directly, through = run(streams, options.seconds, Path(scratch))
    except Stopped as stopped:
        return stopped.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"{streams:,} streams of a token a second, {len(through.late):,} tokens; ms until a token is there:")
    for name, found in (("directly", directly), ("through the gateway", through)):
        shares = ", ".join(f"p{share * 100:g} {found.percentile_ms(share):.2f}" for share in (0.5, 0.99, 0.999))
        print(f"  {name}: {shares}")
    print(f"the gateway: {through.share:.1%} of a core, {through.kib:.1f} KiB a stream")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
