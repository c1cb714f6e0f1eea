"""The tests of the rooms that differ from the last commit on main, for `make check`: prints paths, one a line.

A room is a package of `gateway` or `workers`; its tests are the folder of the same name in tests/unit, and the modules
beside it that begin with its name. A change of what every request passes brings the conformance suite too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "tests" / "unit"
CROSSED = {"core", "wire", "translation", "dialects", "backends", "kernel", "transport", "native"}
"""The rooms whose code the conformance suite crosses."""


def changed() -> list[PurePosixPath]:
    """What differs from the last commit that this branch shares with main, new files included."""
    base = _git("merge-base", "HEAD", "main") if _git("branch", "--list", "main") else ["HEAD"]
    names = _git("diff", "--name-only", base[0]) + _git("ls-files", "--others", "--exclude-standard")
    return [PurePosixPath(name) for name in names]


def proofs_of(paths: list[PurePosixPath]) -> list[str]:
    """What pytest is given for changes of these files: the laws of the repository in any case."""
    rooms = {path.parts[1].removesuffix(".py") for path in paths if path.parts[0] == "gateway" and len(path.parts) > 1}
    rooms |= {"workers"} if any(path.parts[0] == "workers" for path in paths) else set()
    mended = [path for path in paths if path.parts[0] in ("tests", "bench") and path.name.startswith("test_")]
    found = [ROOT / path for path in mended if (ROOT / path).exists()]
    for room in sorted(rooms):
        found += [UNIT / room] if (UNIT / room).is_dir() else []
        found += sorted(UNIT.glob(f"test_{room}*.py"))
    if rooms & CROSSED:
        found.append(ROOT / "tests" / "laws" / "conformance")
    return ["tests/repo", *dict.fromkeys(str(path.relative_to(ROOT)) for path in found)]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print("\n".join(proofs_of(changed())))
