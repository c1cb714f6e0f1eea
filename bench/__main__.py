"""`python -m bench`: measures subjects side by side and prints a table. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench import report
from bench.load import HOST, Sample, Target, measure
from bench.process import BenchError, Process, Stopped, cores, cpu_seconds_now, free_port
from bench.rows import REFERENCE, ROWS, Row
from bench.subjects import SUBJECTS, Subject, before

OUT = Path(__file__).parent / "out"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="CPU per request and per streamed chunk.")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose name contains TEXT")
    parser.add_argument("--subjects", default="nginx,dragoman,limits", metavar="A,B", help=f"of: {', '.join(SUBJECTS)}")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="TREE",
        help="also measure the gateway of another checkout, in turns with this one",
    )
    parser.add_argument("--no-nginx", action="store_true", help="do without the comparison")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turns")
    parser.add_argument("--seconds", type=float, default=5, help="length of one window")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds of load before each window")
    parser.add_argument("--connections", type=int, default=32, help="keep-alive connections of plain rows")
    parser.add_argument("--streams", type=int, default=100, help="concurrent streams of stream rows")
    parser.add_argument("--json", type=Path, default=OUT / "last.json", metavar="FILE", help="where the figures go")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a row exceeds its limit")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.connections, options.streams) < 1 or min(options.seconds, options.warm_up) <= 0:
        parser.error("rounds, seconds, warm-up, connections and streams must be positive")
    return options


def start(
    stack: ExitStack, subject: Subject, directory: Path, worker: int, cpus: set[int], rest: set[int]
) -> tuple[int, Process]:
    """Starts one subject; the stack stops it."""
    directory.mkdir()
    ports = [free_port(), worker]
    if subject.beside is not None:
        ports.append(free_port())
        server = Process(f"{subject.name}-server", subject.beside(directory, ports[2]), rest, directory / "server.log")
        stack.callback(server.stop)
        server.wait_listening(ports[2])
    port = ports[0]
    process = Process(subject.name, subject.command(directory, *ports), cpus, directory / "log")
    stack.callback(process.stop)
    process.wait_ready(f"http://{HOST}:{port}{subject.ready}")
    return port, process


def requests(subject: Subject, rows: Sequence[Row]) -> list[Row]:
    """The requests for this subject."""
    rows = [row for row in rows if subject.rows in row.name]
    return rows if subject.understands else [REFERENCE[kind] for kind in dict.fromkeys(row.kind for row in rows)]


def target(row: Row, port: int, process: Process) -> Target:
    """The target for a row of a running subject."""
    return Target(row, port, functools.partial(cpu_seconds_now, process.popen.pid))


def run(options: argparse.Namespace, subjects: Sequence[Subject], rows: Sequence[Row]) -> report.Report:
    """Starts everything once, then measures in turns: every subject's first row, then every subject's second, again."""
    machine = report.machine()
    measured, rest = cores()
    os.sched_setaffinity(0, rest)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        # Subjects that run as another user pass through.
        scratch.chmod(0o755)
        worker = free_port()
        command = [sys.executable, "-m", "bench.backend", str(worker)]
        process = Process("worker", command, rest, scratch / "worker.log")
        stack.callback(process.stop)
        process.wait_ready(f"http://{HOST}:{worker}/health")
        running = {s.name: start(stack, s, scratch / s.name, worker, measured, rest) for s in subjects}

        plan = [(kind, s, row) for kind in REFERENCE for s in subjects for row in requests(s, rows) if row.kind == kind]
        samples: dict[tuple[str, str], list[Sample]] = {}
        for number in range(options.rounds):
            for kind, group in itertools.groupby(plan, key=lambda one: one[0]):
                members = list(group)
                targets = [target(row, *running[subject.name]) for _, subject, row in members]
                connections = options.connections if kind == "plain" else options.streams
                found = uvloop.run(measure(targets, connections, options.warm_up, options.seconds))
                for (_, subject, row), taken in zip(members, found, strict=True):
                    samples.setdefault((subject.name, row.name), []).append(taken)
                    label = f"round {number + 1}/{options.rounds}  {subject.name:16} {row.name:30}"
                    print(f"{label} {taken.micros:8.1f} µs", file=sys.stderr)
    return report.Report(
        taken=report.now(),
        machine=machine | {"pinned": "no" if measured == rest else "yes"},
        versions={subject.name: subject.version() for subject in subjects},
        settings={name: getattr(options, name) for name in ("seconds", "warm_up", "connections", "streams")},
        cells=[report.cell(subject.name, row, samples[subject.name, row.name]) for _, subject, row in plan],
    )


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 over a limit, 2 when nothing could be measured, 128 + a signal's number."""
    options = parse(arguments)
    Stopped.watch()
    rows = [row for row in ROWS if options.rows in row.name]
    names = [name for name in options.subjects.split(",") if not (options.no_nginx and name == "nginx")]
    try:
        if not rows:
            raise BenchError(f"no row contains {options.rows!r}; there are: {', '.join(row.name for row in ROWS)}")
        if unknown := [name for name in names if name not in SUBJECTS]:
            raise BenchError(f"no such subject: {', '.join(unknown)}")
        subjects = [SUBJECTS[name] for name in names]
        if options.against is not None:
            subjects += [before(one, options.against.resolve()) for one in subjects if one.understands]
        result = run(options, subjects, rows)
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(report.markdown(result))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(report.encode(result))
    failures = report.verdict(result, rows) if options.gate else []
    for failure in failures:
        print(f"bench: over its limit: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
