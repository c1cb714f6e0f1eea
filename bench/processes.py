"""`python -m bench.processes`: what two processes (`serve --processes 2`), or more, can do beside one.

A machine of two cores cannot show it by the clock: the load generator and the worker need a core as well. So the
figure is CPU time: a process serves 1 / (CPU of a request) requests for each second of a core, and N of them N times
that, less what they lose by not being alone (their sockets, each other's cache) and by an uneven share: while the
busiest one has no time left, others wait. Both are measured in turns, on all cores, with the same load.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import uvloop
from msgspec import Struct

from bench.load import HOST, Target, measure
from bench.process import BenchError, Process, Stopped, cores, cpu_seconds_now, free_port, tree
from bench.rows import LIMITER_ROW, ROWS
from bench.subjects import dragoman_command

LEAST = 0.95
"""Of what so many processes could do if each were alone."""


class Turn(Struct, frozen=True):
    """CPU microseconds of a request by one process and by `count`; share: of the CPU of these, the busiest one's."""

    one: float
    many: float
    share: float
    count: int

    @property
    def by_cpu(self) -> float:
        """Requests for a second of CPU of each, as a multiple of those for one by one."""
        return self.count * self.one / self.many

    @property
    def by_share(self) -> float:
        """As `by_cpu`, where the busiest one ends it."""
        return self.one / (self.many * self.share)


def started(stack: ExitStack, scratch: Path, worker: int, count: int) -> tuple[int, Process]:
    """A gateway of so many processes, on all cores; the stack stops it."""
    measured, rest = cores()
    folder, port = scratch / str(count), free_port()
    folder.mkdir()
    command = [*dragoman_command(folder, port, worker), "--processes", str(count)]
    process = Process(f"{count} processes", command, measured | rest, folder / "log")
    stack.callback(process.stop)
    process.wait_ready(f"http://{HOST}:{port}/readyz?model")
    return port, process


def turns(rounds: int, seconds: float, connections: int, count: int = 2) -> list[Turn]:
    row = next(row for row in ROWS if row.name == LIMITER_ROW)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        worker = free_port()
        measured, rest = cores()
        backend = Process(
            "worker", [sys.executable, "-m", "bench.backend", str(worker)], measured | rest, scratch / "log"
        )
        stack.callback(backend.stop)
        backend.wait_ready(f"http://{HOST}:{worker}/health")
        running = {count: started(stack, scratch, worker, count) for count in (1, count)}
        parent = running[count][1].popen.pid
        children = [pid for pid in tree(parent) if pid != parent]
        targets = [Target(row, port, partial(cpu_seconds_now, process.popen.pid)) for port, process in running.values()]
        found = []
        for number in range(rounds):
            before = [cpu_seconds_now(pid) for pid in children]
            one, many = uvloop.run(measure(targets, connections, 1.0, seconds))
            used = [cpu_seconds_now(pid) - was for pid, was in zip(children, before, strict=True)]
            found.append(Turn(one.micros, many.micros, max(used) / sum(used), count))
            print(f"round {number + 1}/{rounds}  {found[-1].by_cpu:.2f}  {found[-1].by_share:.2f}", file=sys.stderr)
        return found


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 if the processes are less than `LEAST` by CPU, 2 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description="Several processes beside one.")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="beside one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4, help="length of a round")
    parser.add_argument("--connections", type=int, default=256, help="the kernel spreads them over the processes")
    options = parser.parse_args(arguments)
    Stopped.watch()
    try:
        found = turns(options.rounds, options.seconds, options.connections, options.processes)
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("| figure | median | least to most |\n|---|--:|--:|")
    for name, values in {
        "CPU µs a plain request, one process": [turn.one for turn in found],
        f"CPU µs a plain request, {options.processes} processes": [turn.many for turn in found],
        f"{options.processes} beside one, by CPU": [turn.by_cpu for turn in found],
        f"share of the busiest one, {options.connections} connections": [turn.share for turn in found],
        f"{options.processes} beside one, where the busiest one ends it": [turn.by_share for turn in found],
    }.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    return 0 if statistics.median(turn.by_cpu for turn in found) >= LEAST * options.processes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
