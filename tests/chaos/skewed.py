"""`python -m tests.chaos.skewed SECONDS MODULE [WORD ...]`: runs a module as `python -m` does, on a machine whose clock
is that much ahead."""

from __future__ import annotations

import runpy
import sys
import time


def main(ahead: float, words: list[str]) -> None:
    true = time.time
    time.time = lambda: true() + ahead
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
