"""`python -m tests.chaos [ROW ...]`: runs rows of the scoreboard; exits with 1 when one is short.

FULL=1 takes the scoreboard's own lengths; SEED=n another draw.
"""

from __future__ import annotations

import sys
import time

import uvloop

from tests.chaos.row import FULL, PARTS, SEED, Findings, every_row


def main(names: list[str]) -> int:
    rows = every_row()
    names = [PARTS.get(name, name) for name in names]
    unknown = [name for name in names if name not in rows]
    if unknown:
        print(f"no such row: {', '.join(unknown)}; there are {', '.join(rows)}", file=sys.stderr)
        return 2
    short = []
    for name in dict.fromkeys(names) or rows:
        title, function = rows[name]
        print(f"{name} {title} (seed {SEED}{', full' if FULL else ''})", flush=True)
        findings, began = Findings(), time.monotonic()
        uvloop.run(function(findings))
        for check in findings.checks:
            print(check)
        print(f"{name} {'holds' if findings.holds else 'IS SHORT'}, {time.monotonic() - began:.1f} s", flush=True)
        if not findings.holds:
            short.append(name)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
