"""`python -m bench.peers`: prints the comparison and keeps it as JSON. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from bench import processes, report
from bench.load import HOST
from bench.peers import figures, page, targets, times
from bench.peers.dialects import DIALECTS
from bench.peers.figures import Lost, Running, Taken
from bench.peers.page import OURS, PROXY
from bench.peers.subjects import PATH, PEERS, Peer, Setup
from bench.peers.times import Several
from bench.process import BenchError, Process, Stopped, cores, free_port

OUT = Path(__file__).resolve().parents[1] / "out" / "peers.json"
WORKERS = 4


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="The gateway beside its peers.")
    parser.add_argument("--subjects", default=",".join(PEERS), metavar="A,B", help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--figures", default=",".join(page.ASKED), metavar="A,B", help=f"of: {', '.join(page.ASKED)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turns")
    parser.add_argument("--requests", type=int, default=2000, help="requests in one turn of a plain figure")
    parser.add_argument("--json", type=Path, default=OUT, metavar="FILE", help="where the figures go")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.requests < figures.CONNECTIONS:
        parser.error(f"at least one round, and {figures.CONNECTIONS} requests")
    return options


def start(stack: ExitStack, peer: Peer, setup: Setup, cpus: set[int], rest: set[int]) -> Running:
    """Starts one subject and what it needs; the stack stops them."""
    setup.directory.mkdir()
    if peer.beside is not None:
        words = peer.beside(setup.directory, setup.spare)
        server = Process(f"{peer.name}-server", words, rest, setup.directory / "server.log")
        stack.callback(server.stop)
        server.wait_listening(setup.spare)
    process = Process(peer.name, peer.command(setup), cpus, setup.directory / "log")
    stack.callback(process.stop)
    process.wait_ready(f"http://{HOST}:{setup.port}{peer.ready}", 120)
    return Running(peer.name, setup.port, process, peer.path, peer.headers(setup), peer.slow, peer.streams, peer.most)


async def take(subjects: list[Running], backend: Running, options: argparse.Namespace) -> page.Figures:
    """Every figure that was asked for."""
    lost, found = Lost(), page.Figures()
    wanted, rounds = options.figures.split(","), options.rounds
    streaming = [one for one in subjects if one.streams]
    # The proxy beside the dialects passes the worker's own wire.
    ours = [one for one in subjects if one.name == OURS]
    spoken = [msgspec.structs.replace(one, dialect=dialect) for one in ours for dialect in DIALECTS]
    proxies = [one for one in subjects if one.name == PROXY]
    routers = [one for one in subjects if PEERS[one.name].router]
    steps: dict[str, Callable[[], Awaitable[Taken]]] = {
        f"plain {size}": partial(
            figures.plain, subjects, length, rounds, options.requests // (1 if length < 1 << 16 else 4), lost
        )
        for size, length in figures.SIZES.items()
    }
    steps |= {"chunk": partial(figures.chunk, streaming, rounds, lost)}
    for dialect in DIALECTS:
        if dialect.name in page.SPOKEN:
            speak = [one for one in subjects if dialect.name in PEERS[one.name].speaks]
            asked = [msgspec.structs.replace(one, dialect=dialect) for one in speak]
            steps[dialect.name] = partial(figures.chunk, asked, min(rounds, 3), lost)
    steps |= {
        "translated": partial(figures.chunk, [*proxies, *spoken], min(rounds, 3), lost, by_dialect=True),
        "first token": partial(times.first_token, [*streaming, backend], rounds, 100),
        "first token loaded": partial(times.first_token_loaded, [*streaming, backend], rounds),
        "growth": partial(figures.growth, subjects, 20.0),
    }
    several: dict[str, Callable[[], Awaitable[Several]]] = {
        "one client": partial(times.one_client, [*subjects, backend], rounds, 400),
        "loaded": partial(times.first_token_at, routers, backend, rounds, 1.5),
        "rate": partial(times.rate, subjects, min(rounds, 3), 1.5),
    }
    began = time.monotonic()
    if "memory" in wanted:
        # Before the others, which leave their own traces in it.
        found.taken["idle memory"], found.taken["memory"] = await figures.memory(subjects)
        began = _told("memory", began)
    for name, step in steps.items():
        if name in wanted:
            found.taken[name] = await step()
            began = _told(name, began)
    for name, each in several.items():
        if name in wanted:
            found.taken |= await each()
            began = _told(name, began)
    found.frames, found.asked = lost.frames, lost.asked
    return found


def _told(name: str, began: float) -> float:
    """Says how long a figure took; returns the time."""
    now = time.monotonic()
    print(f"{name}: {now - began:.0f} s", file=sys.stderr)
    return now


def run(options: argparse.Namespace, peers: Sequence[Peer]) -> page.Comparison:
    """Starts everything once, then measures in turns."""
    machine = report.machine() | {"load average before": f"{os.getloadavg()[0]:.1f}"}
    allowed = os.sched_getaffinity(0)
    measured, rest = cores()
    os.sched_setaffinity(0, rest)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-peers-")))
        # Subjects that run as another user pass through.
        scratch.chmod(0o755)
        workers = [free_port() for _ in range(WORKERS)]
        command = [sys.executable, "-m", "bench.backend", *map(str, workers)]
        process = Process("worker", command, rest, scratch / "worker.log")
        stack.callback(process.stop)
        process.wait_ready(f"http://{HOST}:{workers[-1]}/health")
        backend = Running("backend", workers[0], process, PATH, {}, False)
        running = []
        for peer in peers:
            setup = Setup(scratch / peer.name, free_port(), free_port(), workers)
            running.append(start(stack, peer, setup, measured, rest))
            print(f"{peer.name} serves", file=sys.stderr)
        found = uvloop.run(take(running, backend, options))
    os.sched_setaffinity(0, allowed)
    if "processes" in options.figures.split(","):
        began = time.monotonic()
        turns = processes.turns(options.rounds, 2, 256)
        found.taken["processes"] = {OURS: [turn.by_cpu for turn in turns]}
        _told("processes", began)
    return page.Comparison(
        taken=report.now(),
        machine=machine | {"pinned": "no" if measured == rest else "yes"},
        versions={peer.name: peer.version() for peer in peers},
        on={peer.name: peer.on for peer in peers},
        rounds=options.rounds,
        figures=found,
    )


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 2 when nothing could be measured, 128 + a signal's number."""
    options = parse(arguments)
    Stopped.watch()
    try:
        if unknown := [name for name in options.subjects.split(",") if name not in PEERS]:
            raise BenchError(f"no such subject: {', '.join(unknown)}")
        if unknown := [name for name in options.figures.split(",") if name not in page.ASKED]:
            raise BenchError(f"no such figure: {', '.join(unknown)}")
        result = run(options, [PEERS[name] for name in options.subjects.split(",")])
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n\n".join([page.spread(result), page.on(result), targets.markdown(result), page.facts(result)]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(page.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
