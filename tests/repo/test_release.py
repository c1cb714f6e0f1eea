"""The version stands in one place, and a release is refused where its tag or what repeats the version differs."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from scripts.release.version import REPEATED, faults, version
from tests.repo.tree import ROOT, tracked


def test_the_version_is_one() -> None:
    assert faults(ROOT, f"v{version(ROOT)}") == []


def test_another_tag_is_refused() -> None:
    assert faults(ROOT, version(ROOT)) == [f"the tag is {version(ROOT)}, but this version's tag is v{version(ROOT)}"]


@pytest.mark.parametrize("name", ["pyproject.toml", *REPEATED])
def test_a_version_that_differs_is_found(tmp_path: Path, name: str) -> None:
    for each in ("pyproject.toml", *REPEATED):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    changed = (tmp_path / name).read_text().replace(version(ROOT), "7.7.7", 1)
    (tmp_path / name).write_text(changed)
    assert any("7.7.7" in fault for fault in faults(tmp_path))


def test_all_is_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (every,) = extras.pop("all")
    assert every == f"dragoman[{','.join(sorted(extras))}]"


def test_files_that_are_not_python_are_named_as_the_packages_data() -> None:
    """What the wheel leaves out is missed at run time, so each such file fits a pattern of pyproject.toml."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    left = [path for path in tracked("gateway", "workers") if path.suffix not in {".py", ".c"}]
    named = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
    }
    missing = [str(path.relative_to(ROOT)) for path in left if path not in named]
    assert [name for name in missing if not name.endswith((".pyx", ".pyi"))] == []
