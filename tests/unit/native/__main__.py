"""Sends hostile streams to both relays until the time is over: `make fuzz`.

    python -m tests.unit.native [--seconds 60] [--seed N] [--sanitize]

--sanitize runs with a relay that gcc's AddressSanitizer and its sanitizer of undefined behaviour watch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import uvloop

from gateway.native import BUILT
from tests.unit.native.scripts import script
from tests.unit.native.stage import Stage

HOSTILE = (0.02, 0.05, 0.1, 0.3, 0.8)
ROOT = Path(__file__).resolve().parents[3]


async def fuzz(seconds: float, seed: int) -> int:
    """Returns the exit status: 1 after a difference."""
    from gateway.native import relay

    end, ended, relayed, number = time.monotonic() + seconds, Counter[str](), 0, seed
    async with Stage() as stage:
        while time.monotonic() < end:
            steps, asked = script(Random(number), HOSTILE[number % len(HOSTILE)])
            python, native = await stage.play(steps, False, asked), await stage.play(steps, True, asked)
            ended[native.record["outcome"]] += 1
            relayed += native.relayed
            native.relayed = 0
            if python != native:
                print(f"seed {number}: {asked} {steps}\npython: {python}\nnative: {native}")
                return 1
            number += 1
    print(f"{relay.__file__}: {number - seed:,} streams ({dict(ended)}), {relayed:,} reads relayed, no difference")
    return 0


def sanitized(words: list[str]) -> int:
    """Builds the relay with sanitizers in a copy of the sources, and runs this there. Returns the exit status."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    flags = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("workers", "tests", "bench"):
            Path(folder, name).symlink_to(ROOT / name)
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "gateway", Path(folder, "gateway"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(build, cwd=folder, check=True, env={**os.environ, "CFLAGS": flags, "LDFLAGS": flags})
        # The interpreter keeps memory until its end, and its own allocator would hide what is wrong.
        watched = {
            "LD_PRELOAD": library.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": folder,
        }
        command = [sys.executable, "-m", "tests.unit.native", *words]
        return subprocess.run(command, cwd=folder, env={**os.environ, **watched}).returncode


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.native", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args(arguments)
    if options.sanitize:
        return sanitized(["--seconds", str(options.seconds), "--seed", str(options.seed)])
    if not BUILT:
        print("this installation has no native relay", file=sys.stderr)
        return 2
    return uvloop.run(fuzz(options.seconds, options.seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
