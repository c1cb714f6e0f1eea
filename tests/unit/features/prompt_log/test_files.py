"""A folder of lines: who may read it, how large it gets, and when a file goes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.core.written import Moment
from gateway.features.prompt_log.entry import Line, Prompt
from gateway.features.prompt_log.files import Files
from gateway.translation.texts import Shown

MIB = 1 << 20


def line(text: str = "hi") -> tuple[Line, Any]:
    made = Line(
        time=Moment(1.0), id="i", by="key", key="k", team=None, dialect="openai", operation="chat", model="m",
        stream=False, status=200, outcome="ok", code=None, duration_ms=1.0, trace=None, usage=None,
        prompt=Prompt([Shown("user", text)], []), reply=None,
    )  # fmt: skip
    return made, []


def sizes(folder: Path) -> list[int]:
    return [file.stat().st_size for file in sorted(folder.iterdir())]


def test_only_their_owner_reads_the_files(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "new" / "folder"), 60, MIB)
    assert files.write([line(), line("ho")]) == 2
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    texts = [json.loads(one)["prompt"]["texts"][0]["text"] for one in file.read_text().splitlines()]
    assert texts == ["hi", "ho"]
    files.close()


def test_the_oldest_files_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    now = [1e9]
    files = Files(str(tmp_path), 86400, MIB, lambda: now[0])
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(400):
        now[0] += 1
        files.write([line(f"{number} " + "x" * 10_000)])
        files.tidy()
        assert sum(sizes(tmp_path)) <= MIB
    assert (tmp_path / "notes.txt").exists()
    kept = [json.loads(one) for file in sorted(tmp_path.glob("*.jsonl")) for one in file.read_text().splitlines()]
    assert kept[-1]["prompt"]["texts"][0]["text"].startswith("399 ")
    assert sum(sizes(tmp_path)) > MIB // 2


def test_long_lines_stay_in_the_bound_too(tmp_path: Path) -> None:
    files = Files(str(tmp_path), 86400, MIB)
    for length in (100, 600_000, 900_000, 10, 1_000_000, 500_000):
        files.write([line("x" * length)])
        assert sum(sizes(tmp_path)) <= MIB, length


def test_a_line_that_a_full_disk_has_cut_spoils_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, write = Files(str(tmp_path), 86400, MIB), os.write
    files.write([line("first")])

    def full(file: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        files.write([line("second")])
    monkeypatch.undo()
    files.write([line("third")])
    (file,) = tmp_path.iterdir()
    texts = [json.loads(one)["prompt"]["texts"][0]["text"] for one in file.read_text().splitlines()]
    assert texts == ["first", "third"]


def test_no_line_is_kept_for_longer_than_it_may(tmp_path: Path) -> None:
    now = [1e9]
    files = Files(str(tmp_path), 400, MIB, lambda: now[0])
    for number in range(200):
        files.write([line(str(number))])
        now[0] += 10
        files.tidy()
        found = [json.loads(one) for file in tmp_path.iterdir() for one in file.read_text().splitlines()]
        kept = sorted(int(one["prompt"]["texts"][0]["text"]) for one in found)
        assert kept[-1] == number
        assert number - kept[0] <= 40, "400 s"
        assert number < 40 or len(kept) > 10
    now[0] += 1000
    files.tidy()
    assert sizes(tmp_path) == []


def test_a_file_that_somebody_deleted_is_begun_again(tmp_path: Path) -> None:
    files = Files(str(tmp_path), 86400, MIB)
    files.write([line()])
    for file in tmp_path.iterdir():
        file.unlink()
    files.write([line("again")])
    (file,) = tmp_path.iterdir()
    assert "again" in file.read_text()
