"""Every Python sample of docs/clients.md, and of the README, runs as it stands, against a real model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.dialects import REGISTRY
from tests.support.sampled import sampled

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "docs" / "clients.md", ROOT / "README.md")
ADDRESS = "http://127.0.0.1:8080"
_SAMPLE = re.compile(r"^([\w ,.-]+)(?: \([^)]*\))?:\n\n```python\n(.*?)```", re.M | re.S)
EXAMPLES = [sample for page in PAGES for sample in _SAMPLE.findall(page.read_text())]


def dialect(title: str) -> str:
    """Whose example has this title: all of its words are a dialect's name, or the first one is."""
    whole = re.sub("[ -]", "_", title.lower())
    return whole if whole in REGISTRY else title.split()[0].split("-")[0].strip(",").lower()


def interpreter(name: str) -> str:
    """The one client that cannot share an environment with the gateway has its own."""
    return str(ROOT / ".venv-friendli/bin/python") if name == "Friendli" else sys.executable


@pytest.mark.parametrize(("name", "code"), sampled(EXAMPLES, 8), ids=[name for name, _ in EXAMPLES])
def test_example(name: str, code: str, gateway: str) -> None:
    assert ADDRESS in code
    command = [interpreter(name), "-c", code.replace(ADDRESS, gateway)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "it prints an answer"


def test_examples_are_found() -> None:
    names = {dialect(name) for name, _ in EXAMPLES}
    assert names == set(REGISTRY), "one example for each dialect"
