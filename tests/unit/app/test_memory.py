"""How much memory the process may have, as a machine's files say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.memory import available

HERE = 12_345 << 10


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/a/b", {"a/b/memory.max": HERE, "a/memory.max": "max", "memory.max": "max"}),
        ("0::/a/b", {"a/b/memory.max": HERE << 1, "a/memory.max": HERE}),
        ("0::/", {"memory.max": HERE}),
        ("0::/of/the/host", {"memory.max": HERE}),
        ("3:cpu:/c\n2:cpuset,memory:/a:b\n0::/x", {"memory/a:b/memory.limit_in_bytes": HERE}),
    ],
)
def test_the_least_of_all_groups_around_it(tmp_path: Path, own: str, files: dict[str, object]) -> None:
    write(tmp_path / "own", own)
    for name, text in files.items():
        write(tmp_path / name, text)
    assert available(tmp_path, tmp_path / "own") == HERE


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    most = available(tmp_path, tmp_path / "nowhere")
    assert most > HERE
    write(tmp_path / "own", "0::/a")
    write(tmp_path / "a/memory.max", "max")
    assert available(tmp_path, tmp_path / "own") == most
