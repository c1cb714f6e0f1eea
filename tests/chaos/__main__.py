"""`python -m tests.chaos [ROW ...]`: runs rows of the scoreboard; exits with 1 when one is short.

FULL=1 takes the scoreboard's own lengths; SEED=n another draw.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module

import uvloop

from tests.chaos.row import FULL, PARTS, ROWS, SEED, Findings

TABLES = [
    import_module(f"tests.chaos.{name}")
    for name in (
        "abusive",
        "alike",
        "arriving",
        "balanced",
        "broken",
        "connections",
        "costly",
        "cut",
        "deadly",
        "failed_over",
        "failing",
        "far_redis",
        "frozen",
        "greedy",
        "hostile",
        "large",
        "leaks",
        "limits",
        "many",
        "overload",
        "redis_away",
        "routes",
        "salts",
        "scraped",
        "secrets",
        "shipped",
        "slow",
        "smuggled",
        "spiteful",
        "stalled",
        "strayed",
        "tenants",
    )
]
"""Modules that enter rows."""


def main(names: list[str]) -> int:
    names = [PARTS.get(name, name) for name in names]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    short = []
    for name in dict.fromkeys(names) or ROWS:
        title, function = ROWS[name]
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
