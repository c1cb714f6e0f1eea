"""Writes requirements/*.txt: every package pinned and hashed, no address of any index.

Run by `make lock` in `.venv`, which has `uv`. Pins that still satisfy the inputs are kept; `--upgrade` takes
the newest of everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
HEADER = "# Made by `make lock`. Do not edit.\n"
EVERYWHERE = ("--universal",)
# vLLM's CPU build needs torch's, which has one wheel for each platform. There are no matching builds of torchvision and
# its kin, and nothing here needs them. So they are left out, and the lock is installed without dependencies.
ONE_PLATFORM = ("--python-platform", "x86_64-manylinux_2_28")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
# The gateway's peers in `make bench-peers`.
PEERS = ("litellm", "vllm-router", "sglang-router", "smg")
# The client libraries of `make test-clients`, in as few environments as can be resolved.
CLIENTS = ("python", "azure", "sagemaker2", "sagemaker3", "agents", "aider", "crewai")
# What is not imported for what is tried, and large: CrewAI's memory (half of 1 GB) and package manager, and what aider
# draws its map of a repository with, but not for models that it does not know.
NOT_TRIED = {"aider": ("scipy",), "crewai": ("kubernetes", "lancedb", "onnxruntime", "pyarrow", "uv")}


def compile_lock(inputs: list[str], name: str, *options: str, where: tuple[str, ...] = EVERYWHERE) -> None:
    """Resolves `inputs` for Python 3.11 and later and writes requirements/<name>.txt."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, f"{name}.in"), Path(scratch, f"{name}.txt")
        source.write_text("\n".join(inputs) + "\n")
        lock = LOCKS / f"{name}.txt"
        if lock.exists():
            shutil.copy(lock, target)
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *where, "--python-version", "3.11"]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        subprocess.run([*command, *options, str(source), "-o", str(target)], check=True, stdout=subprocess.DEVNULL)
        lock.write_text(HEADER + target.read_text())


def main() -> None:
    """Locks the runtime first. It constrains the locks of extras and of development, so that all install together."""
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    compile_lock(project["build-system"]["requires"], "build", *upgrade)
    compile_lock(project["project"]["dependencies"], "run", *upgrade)
    constraints = ["--constraint", str(LOCKS / "build.txt"), "--constraint", str(LOCKS / "run.txt")]
    compile_lock(extras["embedded"], "embedded", *constraints, *upgrade)
    compile_lock((LOCKS / "model.in").read_text().splitlines(), "model", "--no-deps", *upgrade)
    compile_lock(extras["tracing"], "tracing", *constraints, *upgrade)
    compile_lock(extras["kv-events"], "kv-events", *constraints, *upgrade)
    compile_lock(extras["s3"], "s3", *constraints, *upgrade)
    together = list(constraints)
    for name in ("tracing", "kv-events", "s3"):
        together += ["--constraint", str(LOCKS / f"{name}.txt")]
    compile_lock((LOCKS / "dev.in").read_text().splitlines(), "dev", *together, *upgrade)
    for name in ("uv", "friendli", "plots", "docs", "sbom", "scan", "release"):
        compile_lock((LOCKS / f"{name}.in").read_text().splitlines(), name, *upgrade)
    for group in CLIENTS:
        name, out = f"clients-{group}", without(*NOT_TRIED.get(group, ()))
        compile_lock((LOCKS / f"{name}.in").read_text().splitlines(), name, *out, *upgrade)
    for peer in PEERS:
        name = f"peer-{peer}"
        compile_lock((LOCKS / f"{name}.in").read_text().splitlines(), name, *upgrade, where=ONE_PLATFORM)
    engine = [*(LOCKS / "vllm.in").read_text().splitlines(), *project["project"]["dependencies"]]
    engine += project["build-system"]["requires"]
    options = [*without(*UNWANTED), "--no-emit-find-links", *_places()]
    compile_lock(engine, "vllm", *constraints[2:], *options, *upgrade, where=ONE_PLATFORM)


def without(*packages: str) -> list[str]:
    """The options that leave packages out of a lock."""
    return [word for name in packages for word in ("--no-emit-package", name)]


def _places() -> list[str]:
    """pip's settings for further package sources, as flags of uv, which does not read pip's settings."""
    found = []
    for variable, option in (("PIP_FIND_LINKS", "--find-links"), ("PIP_EXTRA_INDEX_URL", "--extra-index-url")):
        found += [word for place in os.environ.get(variable, "").split() for word in (option, place)]
    return found


if __name__ == "__main__":
    main()
