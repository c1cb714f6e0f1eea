"""Each folder of gateway/features can be deleted: the gateway without it works, and refuses its options.

The tests that belong to a feature, and are left out without it: `tests/unit/features/FOLDER` or `test_FOLDER.py` there,
modules that import its code or those tests, and tests with the mark `feature`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app.features import ORDER
from tests.repo.tree import ROOT, tracked

FOLDERS = sorted(path.parent.name for path in ROOT.glob("gateway/features/*/__init__.py"))
SHORT = ("tests/unit/kernel/test_way.py",)
WHOLE = ("tests/unit/kernel", "tests/laws/conformance", "tests/unit/app/test_deployment.py")
ONE_IN = "40"
"""Of each law so many cases make one: the copy shows that nothing is missed, not that all is right."""
CONFIG = """
models:
  m: {backend: vllm, workers: ["http://127.0.0.1:8000"]}
"""
WALK = """
import importlib, pkgutil, sys, gateway
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from gateway.config import json_schema
from gateway.config.section import Section
json_schema()
for section in Section.__subclasses__():
    options = {option for option, feature in section.FEATURES.items() if feature == sys.argv[1]}
    assert not options & section.model_fields.keys()
print(gateway.__path__[0])
"""


def without(folder: str, to: Path) -> Path:
    """A copy of the tree without the feature."""
    own = re.compile(rf"\b(gateway|tests\.unit)\.features\.(test_)?{folder}\b")
    built = [*ROOT.glob("gateway/**/*.so")]
    for path in [*tracked("gateway", "workers", "tests", "docs", "pyproject.toml"), *built]:
        place = path.relative_to(ROOT)
        mine = {f"gateway/features/{folder}", f"tests/unit/features/{folder}"} & {str(one) for one in place.parents}
        if (
            mine
            or place.stem == f"test_{folder}"
            or (place.parts[0] == "tests" and path.suffix == ".py" and own.search(path.read_text()))
        ):
            continue
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to / place)
    (to / "gateway.yaml").write_text(CONFIG)
    return to


def python(tree: Path, *arguments: str) -> str:
    """Runs in the copy alone. Returns what it writes."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


LONG = [pytest.mark.long, pytest.mark.whole]  # most of a minute each


def test_each_folder_has_its_place() -> None:
    assert sorted(place for place in ORDER if "." not in place) == FOLDERS


@pytest.mark.parametrize(
    ("folder", "tests"),
    [("guards", SHORT), *(pytest.param(folder, WHOLE, marks=LONG) for folder in FOLDERS)],
)
def test_a_folder_can_be_deleted(folder: str, tests: tuple[str, ...], tmp_path: Path) -> None:
    tree = without(folder, tmp_path)
    assert python(tree, "-c", WALK, folder).strip() == str(tree / "gateway")
    python(tree, "-m", "gateway.cli", "check", "gateway.yaml")
    python(tree, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--slice", ONE_IN, *tests)
