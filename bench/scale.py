"""`python -m bench.scale`: what many workers and many keys cost a gateway that has nothing else to do.

idle   the CPU of a gateway without requests that watches so many workers: their probes, and the figures of their
       engines. The workers are sockets of one process, and idle; they answer what the simulated worker answers
keys   how long the gateway takes to start with so many keys in a file, and to reload that file; and for how long
       it answers nobody meanwhile: the longest of the requests that one client makes one after the other
fleets the CPU of a plain request, with one of 500 prompts, by the workers of its model and by the models beside it;
       the gateways take turns
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from operator import truediv
from pathlib import Path

import uvloop

from bench.backend import Worker
from bench.inside import put_keys, with_keys
from bench.load import HOST, Target, measure
from bench.process import BenchError, Process, Stopped, cores, cpu_seconds_now, free_port
from bench.replies import MODEL
from bench.rows import LIMITER_ROW, ROWS
from bench.subjects import dragoman_command, dragoman_config
from gateway.config import Redis
from gateway.redis import connect
from workers.simulated.engine import Engine
from workers.simulated.metrics import Metrics
from workers.simulated.options import Options

SETTLE_S = 80.0
"""Until the engines have been idle for so long that they are read seldom."""
_READY_S = 180.0
SHAPES = ((1, 1), (1, 4), (1, 50), (1, 200), (50, 4))
"""(models, workers of each)"""
STORED = ("start", "a new key in force", "all read again", "longest answer meanwhile")
PROMPTS = 500
_FIRST = 20_000
"""The first of the workers' ports."""


class _Idle(Worker):
    """A worker without requests."""

    answers: dict[bytes, bytes] = {}

    def answer(self, path: bytes, body: bytes) -> None:
        found = self.answers.get(path)
        if found is None:
            super().answer(path, body)
        else:
            self.transport.write(found)


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    page = Metrics().render(Engine(Options(models=(MODEL,)), loop)).encode()
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\n\r\n"
    _Idle.answers = {b"/health": head % 0, b"/metrics": head % len(page) + page}
    for port in range(_FIRST, _FIRST + count):
        await loop.create_server(lambda: _Idle(loop), HOST, port, backlog=64)
    await asyncio.Event().wait()


def _gateway(folder: Path, config: dict[str, object]) -> tuple[int, Process]:
    port = free_port()
    command = dragoman_command(folder, port, 1)
    Path(command[-1]).write_text(json.dumps(dragoman_config(port, 1) | config))
    return port, Process("gateway", command, cores()[0], folder / "gateway.log")


@contextmanager
def _workers(folder: Path, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.scale", "serve", "--count", str(count)]
    backend = Process("workers", command, cores()[1], folder / "workers.log")
    try:
        backend.wait_listening(_FIRST + count - 1)
        yield
    finally:
        backend.stop()


def _models(models: int, workers: int) -> dict[str, object]:
    """So many models, each with workers of its own; the first is the one that is asked for."""
    found = {}
    for number in range(models):
        first = _FIRST + number * workers
        addresses = [f"http://{HOST}:{port}" for port in range(first, first + workers)]
        name = f"{MODEL}-{number}" if number else MODEL
        found[name] = {"backend": "vllm", "workers": addresses, "policy": "prefix"}
    return {"models": found, "breaker": {"slowstart_s": 0}}


def fleets(folder: Path, rounds: int) -> list[list[float]]:
    """CPU microseconds of a request, by shape and round."""
    row = next(row for row in ROWS if row.name == LIMITER_ROW)
    with ExitStack() as stack:
        stack.enter_context(_workers(folder, max(models * workers for models, workers in SHAPES)))
        targets = []
        for shape in SHAPES:
            place = folder / "x".join(map(str, shape))
            place.mkdir()
            port, gateway = _gateway(place, _models(*shape))
            stack.callback(gateway.stop)
            gateway.wait_ready(f"http://{HOST}:{port}/readyz?model={MODEL}")
            targets.append(Target(row, port, partial(cpu_seconds_now, gateway.popen.pid), PROMPTS))
        found = [uvloop.run(measure(targets, 32, 0.5, 1.5)) for _ in range(rounds)]
    return [[sample.micros for sample in samples] for samples in zip(*found, strict=True)]


def idle(folder: Path, workers: int, seconds: float) -> float:
    """The share of a core that the gateway uses."""
    with _workers(folder, workers):
        port, gateway = _gateway(folder, _models(1, workers))
        try:
            gateway.wait_ready(f"http://{HOST}:{port}/readyz?model")
            time.sleep(SETTLE_S)
            before, began = cpu_seconds_now(gateway.popen.pid), time.monotonic()
            time.sleep(seconds)
            return (cpu_seconds_now(gateway.popen.pid) - before) / (time.monotonic() - began)
        finally:
            gateway.stop()


def _write_keys(path: Path, count: int, version: int) -> None:
    """Keys as `dragoman keys new` prints them."""
    lines = []
    for number in range(count):
        digest = sha256(b"%d %d" % (number, version)).hexdigest()
        lines.append(f'key-{number}:\n  id: k{number:09d}\n  hash: "sha256:{digest}"\n  team: team-{number % 1000}\n')
    path.with_suffix(".new").write_text("".join(lines))
    path.with_suffix(".new").rename(path)


def _longest_wait(port: int, log: Path, limit_s: float) -> tuple[float, float]:
    """(seconds until the gateway has reloaded, the longest answer until then)."""
    client, longest, looked = http.client.HTTPConnection(HOST, port, timeout=30), 0.0, 0.0
    began = time.monotonic()
    while (now := time.monotonic()) < began + limit_s:
        Stopped.check()
        client.request("GET", "/livez")
        client.getresponse().read()
        longest = max(longest, time.monotonic() - now)
        if now > looked + 0.1:
            looked = now
            if b'"reloaded"' in log.read_bytes():
                return now - began, longest
        time.sleep(0.002)
    raise BenchError(f"the gateway did not reload within {limit_s:.0f} s")


def keys(folder: Path, count: int, rounds: int) -> list[tuple[float, float, float]]:
    """(seconds to start, seconds to reload, longest answer meanwhile in seconds), of each round."""
    found = []
    for number in range(rounds):
        _write_keys(folder / "keys.yaml", count, 0)
        began = time.monotonic()
        port, gateway = _gateway(folder, {"auth": "keys", "keys_file": "keys.yaml"})
        try:
            gateway.wait_ready(f"http://{HOST}:{port}/livez", _READY_S)
            started = time.monotonic() - began
            _write_keys(folder / "keys.new.yaml", count, number + 1)
            os.replace(folder / "keys.new.yaml", folder / "keys.yaml")
            os.kill(gateway.popen.pid, signal.SIGHUP)
            took, longest = _longest_wait(port, gateway.log, _READY_S)
            found.append((started, took, longest))
            print(f"{number + 1}/{rounds}  {started:.1f} s  {took:.1f} s  {longest * 1e3:.0f} ms", file=sys.stderr)
        finally:
            gateway.stop()
    return found


def _answer(client: http.client.HTTPConnection, key: str) -> float:
    """Seconds until a request with this key is let in."""
    began = time.monotonic()
    while True:
        Stopped.check()
        client.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        reply = client.getresponse()
        reply.read()
        if reply.status == 200:
            return time.monotonic() - began
        if time.monotonic() > began + _READY_S:
            raise BenchError(f"a key is not let in: {reply.status}")


async def _cut(redis: Redis) -> None:
    client = connect(redis)
    await client.client_kill_filter(_type="normal", skipme=True)
    await client.aclose()


def stored(folder: Path, count: int) -> tuple[float, float, float, float]:
    """(seconds to start, until a new key is in force, to read all again, longest answer meanwhile)."""
    *names, new = [f"sk-{number:040}" for number in range(count)]
    with with_keys(folder, names) as redis:
        began = time.monotonic()
        shared: dict[str, object] = {"auth": "keys", "keys_store": "redis", "stored_keys": {"max_keys": count}}
        port, gateway = _gateway(folder, shared | {"redis": {"addresses": list(redis.addresses)}})
        try:
            gateway.wait_ready(f"http://{HOST}:{port}/livez", _READY_S)
            client = http.client.HTTPConnection(HOST, port, timeout=30)
            _answer(client, names[-1])
            started = time.monotonic() - began
            uvloop.run(put_keys(redis, [new]))
            made = _answer(client, new)
            uvloop.run(_cut(redis))
            began, longest = time.monotonic(), 0.0
            while gateway.log.read_bytes().count(b'"keys of the store known"') < 2:
                longest = max(longest, _answer(client, names[0]))
            return started, made, time.monotonic() - began, longest
        finally:
            gateway.stop()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="Many workers, many keys.")
    parser.add_argument(
        "what", choices=("idle", "keys", "store", "fleets", "serve"), help="serve: the workers of the others"
    )
    parser.add_argument("--count", type=int, help="workers (200) or keys (100,000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which the idle gateway is measured")
    parser.add_argument("--rounds", type=int, default=3, help="starts with so many keys, or turns of the fleets")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        uvloop.run(_serve(options.count))
        return 0
    Stopped.watch()
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as scratch:
            if options.what == "idle":
                count = options.count or 200
                share = idle(Path(scratch), count, options.seconds)
                print(f"{count} idle workers: {share:.2%} of a core, over {options.seconds:.0f} s")
            elif options.what == "fleets":
                one, *_ = taken = fleets(Path(scratch), options.rounds)
                print("| models | workers of each | CPU µs a request | to one worker |\n|--:|--:|--:|--:|")
                for (models, workers), each in zip(SHAPES, taken, strict=True):
                    ratio = statistics.median(map(truediv, each, one))
                    print(f"| {models} | {workers} | {statistics.median(each):.1f} | {ratio:.2f} |")
            elif options.what == "store":
                count = options.count or 100_000
                print(f"{count:,} keys in Redis, in seconds:")
                for name, value in zip(STORED, stored(Path(scratch), count), strict=True):
                    print(f"  {name}: {value:.3f}")
            else:
                count = options.count or 100_000
                rows = sorted(keys(Path(scratch), count, options.rounds))
                print(f"{count:,} keys, least of {len(rows)} rounds, in seconds:")
                for name, values in zip(("start", "reload", "longest answer"), zip(*rows, strict=True), strict=True):
                    print(f"  {name}: {min(values):.3f}")
    except Stopped as stopped:
        return stopped.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
