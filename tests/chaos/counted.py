"""`python -m tests.chaos.counted MODULE [WORD ...]`: runs a module as `python -m` does; on SIGUSR1 it writes a line
{"event": "counted", "tasks": how many tasks its loop has}."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import sys


def count(number: int, frame: object) -> None:
    os.write(1, json.dumps({"event": "counted", "tasks": len(asyncio.all_tasks())}).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, count)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
