"""`python -m bench.routing`: hit rate, time to first token and spread of load, for each pick policy and peer.

See docs/routing.md. Workers live in this process, gateways in their own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import uvloop

from bench.load import HOST
from bench.peers.subjects import PEERS, Setup
from bench.process import BenchError, Process, free_port
from bench.replies import MODEL
from bench.routing.run import KV_BLOCKS, Figures, fleet, play
from bench.routing.traces import Conversation, trace
from gateway.fleet.pick import POLICIES
from tests.support.simulated.server import Simulated

REPLICAS = 3
EVENTS = "+events"
"""Behind a policy's name: the workers tell what they have cached, and the gateway listens."""
OURS = (*POLICIES, f"prefix{EVENTS}", f"prefix x{REPLICAS}", f"prefix{EVENTS} x{REPLICAS}")
ROUTERS = ("sglang-router", "vllm-router")
SUBJECTS = (*OURS, *ROUTERS, *(f"{name} x{REPLICAS}" for name in ROUTERS))
HEADER = """\
| subject | requests | hit rate | TTFT p50, ms | TTFT p99, ms | work, busiest / mean | requests, busiest / mean |
|---|--:|--:|--:|--:|--:|--:|"""


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError("expected numbers, like 1,2,3") from None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description="Pick policies on prefix caches.")
    parser.add_argument("--subjects", default=",".join(POLICIES), metavar="A,B", help=f"of: {', '.join(SUBJECTS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="in which conversations begin")
    parser.add_argument("--rate", type=float, default=3.0, help="conversations that begin in a second")
    parser.add_argument("--seeds", type=_seeds, default=(1,), metavar="N,M", help="of the traces; rows are their means")
    parser.add_argument("--kv-blocks", type=int, default=KV_BLOCKS, help="of 16 tokens, that a worker's cache holds")
    options = parser.parse_args(arguments)
    if unknown := set(options.subjects.split(",")) - set(SUBJECTS):
        parser.error(f"unknown subjects: {', '.join(sorted(unknown))}")
    return options


def commands(name: str, directory: Path, workers: Sequence[Simulated]) -> list[tuple[int, list[str], str]]:
    """(port, command, path that is ready) of each process of a subject. The workers listen already."""
    directory.mkdir(parents=True)
    shown, _, replicas = name.partition(" x")
    ports = [worker.port for worker in workers]
    if shown in PEERS:
        peer = PEERS[shown]
        setups = [Setup(directory, free_port(), free_port(), ports) for _ in range(int(replicas or 1))]
        return [(setup.port, peer.command(setup), peer.ready) for setup in setups]
    setup = Setup(directory, free_port(), free_port(), ports)
    policy = shown.removesuffix(EVENTS)
    model: dict[str, Any] = {"backend": "vllm", "workers": setup.urls(), "policy": policy}
    if policy != shown:
        model |= {"kv_events": {}, "worker_options": {worker.url: {"kv_events": _ports(worker)} for worker in workers}}
    found = []
    for number in range(int(replicas or 1)):
        port = free_port()
        config = {
            "listen": {"host": HOST, "port": port},
            "auth": "open",
            "log": {"requests": False},
            "models": {MODEL: model},
        }
        path = setup.write(f"gateway{number}.yaml", json.dumps(config))
        command = str(Path(sys.executable).with_name("dragoman"))
        found.append((port, [command, "serve", "--config", path], "/readyz?model"))
    return found


def _ports(worker: Simulated) -> dict[str, int | None]:
    port, replay_port = worker.kv_ports
    return {"port": port, "replay_port": replay_port}


async def measure(name: str, directory: Path, conversations: Sequence[Conversation], kv_blocks: int) -> Figures:
    """Starts a subject and fresh workers, plays the trace, stops both; a signal cancels it, and stops them too."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, own.cancel, number)
    cpus = os.sched_getaffinity(0)
    async with AsyncExitStack() as stack:
        workers = fleet(kv_blocks, telling=EVENTS in name)
        for worker in workers:
            await stack.enter_async_context(worker)
        urls = []
        for count, (port, words, ready) in enumerate(commands(name, directory, workers)):
            process = Process(f"{name} {count}", words, cpus, directory / f"log{count}")
            stack.push_async_callback(asyncio.to_thread, process.stop)
            await asyncio.to_thread(process.wait_ready, f"http://{HOST}:{port}{ready}", 60)
            urls.append(f"http://{HOST}:{port}")
        return await play(name, urls, workers, conversations)


def row(one: Figures) -> str:
    """A line of the table."""
    return (
        f"| {one.name} | {one.requests:,} | {one.hits:.3f} | {one.percentile(0.5):.0f} | {one.percentile(0.99):.0f}"
        f" | {one.work:.2f} | {one.busiest:.2f} |"
    )


def mean(found: Sequence[Figures]) -> Figures:
    """One subject's figures of several traces: means, and the times of all requests."""
    return Figures(
        found[0].name,
        sum(one.requests for one in found),
        fmean([one.hits for one in found]),
        sorted(itertools.chain.from_iterable(one.first_ms for one in found)),
        fmean([one.work for one in found]),
        fmean([one.busiest for one in found]),
    )


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 2 when nothing could be measured. What each of several seeds gave goes to standard
    error."""
    options = parse(arguments)
    traces = {seed: trace(seed, options.seconds, options.rate) for seed in options.seeds}
    print(HEADER, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-routing-") as scratch:
            for number, name in enumerate(options.subjects.split(",")):
                found = []
                for seed, conversations in traces.items():
                    directory = Path(scratch, f"{number}-{seed}")
                    found.append(uvloop.run(measure(name, directory, conversations, options.kv_blocks)))
                    if len(traces) > 1:
                        print(f"seed {seed}: {row(found[-1])}", file=sys.stderr, flush=True)
                print(row(mean(found)), flush=True)
    except asyncio.CancelledError as stopped:
        return 128 + int(stopped.args[0])
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
