"""`python -m bench.processes`: what two processes (`serve --processes 2`) can do beside one.

A machine of two cores cannot show it by the clock: the load generator and the worker need a core as well. So the
figure is CPU time: a process serves 1 / (CPU of a request) requests for each second of a core, and two of them twice
that, less what they lose by not being alone (their sockets, each other's cache) and by an uneven share: while the
busier one has no time left, the other waits. Both are measured in turns, on all cores, with the same load.
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

LEAST = 1.9


class Turn(Struct, frozen=True):
    """CPU microseconds of a request by one process and by two; share: of the CPU time of two, the busier one's."""

    one: float
    two: float
    share: float

    @property
    def by_cpu(self) -> float:
        """Requests for two seconds of CPU by two, as a multiple of those for one by one."""
        return 2 * self.one / self.two

    @property
    def by_share(self) -> float:
        """As `by_cpu`, where the busier one ends it."""
        return self.one / (self.two * self.share)


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


def turns(rounds: int, seconds: float, connections: int) -> list[Turn]:
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
        running = {count: started(stack, scratch, worker, count) for count in (1, 2)}
        children = [pid for pid in tree(running[2][1].popen.pid) if pid != running[2][1].popen.pid]
        targets = [Target(row, port, partial(cpu_seconds_now, process.popen.pid)) for port, process in running.values()]
        found = []
        for number in range(rounds):
            before = [cpu_seconds_now(pid) for pid in children]
            one, two = uvloop.run(measure(targets, connections, 1.0, seconds))
            used = [cpu_seconds_now(pid) - was for pid, was in zip(children, before, strict=True)]
            found.append(Turn(one.micros, two.micros, max(used) / sum(used)))
            print(f"round {number + 1}/{rounds}  {found[-1].by_cpu:.2f}  {found[-1].by_share:.2f}", file=sys.stderr)
        return found


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 where two processes are less than `LEAST` of one by CPU, 2 when nothing could be
    measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description="Two processes beside one.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4, help="length of a round")
    parser.add_argument("--connections", type=int, default=256, help="the kernel spreads them over the processes")
    options = parser.parse_args(arguments)
    Stopped.watch()
    try:
        found = turns(options.rounds, options.seconds, options.connections)
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("| figure | median | least to most |\n|---|--:|--:|")
    for name, values in {
        "CPU µs a plain request, one process": [turn.one for turn in found],
        "CPU µs a plain request, two processes": [turn.two for turn in found],
        "two beside one, by CPU": [turn.by_cpu for turn in found],
        f"share of the busier one, {options.connections} connections": [turn.share for turn in found],
        "two beside one, where the busier one ends it": [turn.by_share for turn in found],
    }.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    return 0 if statistics.median(turn.by_cpu for turn in found) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
