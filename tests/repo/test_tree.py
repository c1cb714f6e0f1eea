"""Every tracked file: no path of one machine, no address of a package index, no catch-all names, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, tracked, write

# Brackets keep these patterns from matching their own source. The gateway's folder in a container is not a machine's.
MACHINE_PATH = re.compile(r"/(?<![\w.}]/)(?:(?:work|root|farm)/[.a-z]|tmp/[a-z]|home/[a-z]+/)")
INDEX_HOST = re.compile(
    r"\b(?:pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|(?:deb|security)[.]debian[.]org|proxy[.]golang[.]org)"
)
# What these hold has no name of its own yet.
VAGUE_FILES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py", "manager.py"}
VAGUE_CLASS = re.compile(r"\bclass \w*(?:Manager|Helper|Utils?)\b")


def bad_text(root: Path, files: Iterable[Path]) -> list[str]:
    """Lines with a machine's path or an index's host, in files that are text."""
    found = []
    for path in files:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for pattern, what in ((MACHINE_PATH, "a machine's path"), (INDEX_HOST, "an index's host")):
            for match in pattern.finditer(text):
                number = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(root)}:{number}: {what}: {match[0]}")
    return found


def bad_code(root: Path, files: Iterable[Path]) -> list[str]:
    """Python files with a vague name, with a vaguely named class, or without a docstring."""
    found = []
    for path in files:
        place, text = path.relative_to(root), path.read_text()
        if path.name in VAGUE_FILES:
            found.append(f"{place}: a name that says nothing")
        if text.startswith('"""') and not VAGUE_CLASS.search(text):
            continue
        tree = ast.parse(text)
        if not ast.get_docstring(tree) and (path.name != "__init__.py" or tree.body):
            found.append(f"{place}: no docstring")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and VAGUE_CLASS.search(f"class {node.name}"):
                found.append(f"{place}:{node.lineno}: class {node.name}: a name that says nothing")
    return found


def test_no_file_holds_a_machine_path_or_an_index_address() -> None:
    assert bad_text(ROOT, tracked()) == []


def test_code_is_named_and_described() -> None:
    assert bad_code(ROOT, tracked("*.py")) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/x",
        "x='/" + "root/.cache'",
        "cd /" + "tmp/abc",
        "known_folder: /" + "tmp/known",
        "/" + "home/me/x",
        "https://py" + "pi.org/x",
    ],
)
def test_bad_text_is_found(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"a.md": f"fine\n{text}\n"})
    assert [line.partition(": ")[0] for line in bad_text(tmp_path, [tmp_path / "a.md"])] == ["a.md:2"]


@pytest.mark.parametrize(
    "text",
    [
        "mountPath: /" + "tmp",
        "$OUT/" + "work/x",
        "/opt/ml/model",
        "tests/" + "home/page",
        "py" + "pi",
    ],
)
def test_good_text_is_not(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"a.md": text})
    assert bad_text(tmp_path, [tmp_path / "a.md"]) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("utils.py", '"""Doc."""'),
        ("a.py", "x = 1"),
        ("a.py", '"""Doc."""\nclass PoolManager: ...'),
        ("pkg/__init__.py", "x = 1"),
    ],
)
def test_bad_code_is_found(tmp_path: Path, file: str, text: str) -> None:
    write(tmp_path, {file: text + "\n"})
    assert len(bad_code(tmp_path, [tmp_path / file])) == 1


def test_no_link_is_in_git() -> None:
    """It would lead to where one machine has something."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert [line for line in listed.splitlines() if line.startswith("120000")] == []
