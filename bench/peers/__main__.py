"""`python -m bench.peers`: prints the comparison and keeps it as JSON. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench import report
from bench.load import HOST
from bench.peers import figures, page
from bench.peers.figures import Lost, Running
from bench.peers.subjects import PATH, PEERS, Peer, Setup
from bench.process import BenchError, Process, Stopped, cores, free_port

OUT = Path(__file__).resolve().parents[1] / "out" / "peers.json"
WORKERS = 4


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="The gateway beside its peers.")
    parser.add_argument("--subjects", default=",".join(PEERS), metavar="A,B", help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--figures", default=",".join(page.TITLES), metavar="A,B", help=f"of: {', '.join(page.TITLES)}")
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
    return Running(peer.name, setup.port, process, peer.path, peer.headers(setup), peer.slow, peer.streams)


async def take(subjects: list[Running], backend: Running, options: argparse.Namespace) -> page.Figures:
    """Every figure that was asked for."""
    lost, found = Lost(), page.Figures()
    wanted = options.figures.split(",")
    streaming = [one for one in subjects if one.streams]
    for size, length in figures.SIZES.items():
        if (name := f"plain {size}") in wanted:
            number = options.requests if length < 1 << 16 else options.requests // 4
            found.taken[name] = await figures.plain(subjects, length, options.rounds, number, lost)
    if "chunk" in wanted:
        found.taken["chunk"] = await figures.chunk(streaming, options.rounds, lost)
    if "first token" in wanted:
        found.taken["first token"] = await figures.first_token([*streaming, backend], options.rounds, 100)
    if "first token loaded" in wanted:
        found.taken["first token loaded"] = await figures.first_token_loaded([*streaming, backend], options.rounds)
    if "rate" in wanted:
        found.taken["rate"] = await figures.rate(subjects, min(options.rounds, 3), 1.5)
    if "memory" in wanted:
        found.taken["idle memory"], found.taken["memory"] = await figures.memory(subjects)
    found.frames, found.asked = lost.frames, lost.asked
    return found


def run(options: argparse.Namespace, peers: Sequence[Peer]) -> page.Comparison:
    """Starts everything once, then measures in turns."""
    machine = report.machine()
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
        if unknown := [name for name in options.figures.split(",") if name not in page.TITLES]:
            raise BenchError(f"no such figure: {', '.join(unknown)}")
        result = run(options, [PEERS[name] for name in options.subjects.split(",")])
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(page.markdown(result))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(page.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
