"""`python -m bench.guard`: is the gateway dearer than it was accepted to be?

Figures in microseconds say little: the machine, its neighbours and its clock change them by tens of percent. So the
accepted figures, in accepted.json, are ratios: to nginx and to the bare relay (relay.py), measured in turns with the
gateway in the same run. A row fails if it is worse by more than MOST against both: a reference that had a bad minute
alone proves nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import __main__ as bench
from bench.process import BenchError, Stopped
from bench.report import Cell, Report
from bench.rows import LIMITED, LIMITER_ROW, ROWS
from bench.subjects import SUBJECTS

ACCEPTED = Path(__file__).with_name("accepted.json")
MOST = 1.15
REFERENCES = ("nginx", "bare")
WATCHED = (
    ("dragoman", LIMITER_ROW),
    (LIMITED, LIMITER_ROW),
    ("dragoman", "openai → vllm stream"),
    ("dragoman", "ollama_style → vllm stream"),
)
"""(subject, row): what is watched. A dialect of the worker's wire and a translated one stand for the others."""

Ratios = dict[str, dict[str, float]]
"""Row, with its subject -> reference -> CPU as a multiple of the reference's."""


def ratios(report: Report) -> Ratios:
    """What was measured, as the accepted figures are."""
    cells = {(cell.subject, cell.row): cell for cell in report.cells}
    found: Ratios = {}
    for subject, row in WATCHED:
        ours = cells[subject, row]
        found[f"{subject}: {row}"] = {
            reference: round(steady(ours) / steady(cells[reference, ours.kind]), 2) for reference in REFERENCES
        }
    return found


def steady(cell: Cell) -> float:
    """Of all rounds the figure that varies least from run to run on a busy machine: for requests, of which a busy
    machine makes fewer and dearer ones, the least; for chunks, of which it makes as many, the mean. In three runs of
    seven or eight rounds the ratios lay within 7 % and 9 %, the medians of the rounds' ratios within 22 % and 12 %."""
    return min(cell.micros) if cell.kind == "plain" else statistics.fmean(cell.micros)


def worse(found: Mapping[str, Mapping[str, float]], accepted: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The rows that are worse than accepted, or that nobody accepted."""
    failures = []
    for row, times in found.items():
        if row not in accepted:
            failures.append(f"{row}: has no accepted figure; `--accept` takes this one")
        elif all(times[reference] > MOST * accepted[row][reference] for reference in times):
            said = ", ".join(
                f"{now:.2f} times {reference} where {accepted[row][reference]:.2f} is accepted"
                for reference, now in times.items()
            )
            failures.append(f"{row}: {said}")
    return failures


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 if a row is worse, 2 if nothing could be measured, 128 + a signal's number."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Compares with the accepted ratios.")
    parser.add_argument("--accept", action="store_true", help="accept what is measured now")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured, in turns")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one window")
    parser.add_argument("--json", type=Path, default=ACCEPTED, metavar="FILE", help="the accepted figures")
    options = parser.parse_args(arguments)
    settings = ["--rounds", str(options.rounds), "--seconds", str(options.seconds), "--warm-up", "0.5"]
    watched = {row for _, row in WATCHED}
    Stopped.watch()
    try:
        subjects = [SUBJECTS[name] for name in (*REFERENCES, *dict.fromkeys(subject for subject, _ in WATCHED))]
        found = ratios(bench.run(bench.parse(settings), subjects, [row for row in ROWS if row.name in watched]))
    except Stopped as error:
        return error.status
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    accepted = msgspec.json.decode(options.json.read_bytes(), type=Ratios) if options.json.exists() else {}
    for row, times in found.items():
        now = ", ".join(f"{value:.2f} times {reference}" for reference, value in times.items())
        before = ", ".join(f"{value:.2f}" for value in accepted.get(row, {}).values())
        print(f"{row}: {now} (accepted: {before or 'none'})")
    if options.accept:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        return 0
    failures = worse(found, accepted)
    for failure in failures:
        print(f"bench: worse than accepted: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
