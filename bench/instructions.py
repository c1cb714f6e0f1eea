"""`python -m bench.instructions`: the machine instructions of a request or a chunk, counted by valgrind's cachegrind.

They are those of `bench.inside`, its measuring loop included: a longer run's less a shorter one's, so that neither the
start nor the end counts. On any machine, however busy, they are the same to about 1 %.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from bench.inside import CLIENTS, TURNS
from bench.rows import ROWS

TITLE = "The machine instructions of a request or a chunk."
FEW, MORE = 1, 3
"""Batches of `bench.inside`: in the shorter run, and in the longer one."""
_REFERENCES = re.compile(r"I\s+refs:\s+([\d,]+)")


def counted(arguments: Sequence[str], batches: int) -> int:
    """The instructions of a whole run of `bench.inside`. Raises CalledProcessError if the run fails."""
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    words = [*valgrind, sys.executable, "-m", "bench.inside", *arguments, "--batches", str(batches)]
    fixed = os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=fixed)
    (found,) = _REFERENCES.findall(done.stderr)
    return int(found.replace(",", ""))


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=TITLE)
    parser.add_argument("--row", default=ROWS[0].name, choices=[row.name for row in ROWS])
    parser.add_argument("--python", action="store_true", help="without the native relay")
    parser.add_argument("--no-limits", action="store_true", help="without the three limits")
    options = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed: `apt-get install valgrind` (Debian)")
    given = ["--row", options.row, *["--python"] * options.python, *["--no-limits"] * options.no_limits]
    few, more = counted(given, FEW), counted(given, MORE)
    units = (MORE - FEW) * TURNS * CLIENTS
    print(f"{(more - few) // units:,} instructions for one of {units:,}: {options.row}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
