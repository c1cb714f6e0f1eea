"""scripts/debian.sh installs what is missing and nothing else, or says so: tried with stand-ins for the commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

DPKG = """#!/bin/sh
for word; do last=$word; done
[ "$last" = there ] && printf installed || exit 1
"""


def run(folder: Path, user: int, *packages: str) -> tuple[int, str, list[str]]:
    """Status, standard error, and what apt-get was told. apt-get notes its words and changes nothing."""
    notes = folder / "notes"
    for name, text in {
        "dpkg-query": DPKG,
        "id": f"#!/bin/sh\necho {user}\n",
        "apt-get": f'#!/bin/sh\necho "$@" >>"{notes}"\n',
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    script = str(ROOT / "scripts" / "debian.sh")
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run([script, *packages], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, notes.read_text().splitlines() if notes.exists() else []


@pytest.mark.parametrize("user", [0, 1000])
def test_what_is_there_is_left_alone(tmp_path: Path, user: int) -> None:
    assert run(tmp_path, user, "there") == (0, "", [])


def test_root_gets_what_is_missing(tmp_path: Path) -> None:
    status, errors, told = run(tmp_path, 0, "there", "missing", "other")
    assert (status, errors) == (0, "")
    assert told == ["update --quiet=2", "install --quiet=2 --yes --no-install-recommends missing other"]


def test_others_are_told_what_to_install(tmp_path: Path) -> None:
    status, errors, told = run(tmp_path, 1000, "there", "missing")
    assert (status, told) == (1, [])
    assert errors == (
        "debian.sh: missing: missing. On Debian, as root: apt-get install --no-install-recommends missing\n"
    )
