"""The version stands in pyproject.toml. What must repeat it, because its readers cannot look there, is compared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DIST = ROOT / "dist"
FORM = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
NAMED = r"\bdragoman(?:/\w+:|[-=]=?)(\d+\.\d+\.\d+)"
REPEATED = {
    "CHANGELOG.md": r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d$",
    "helm/dragoman/Chart.yaml": r"^(?:version|appVersion): \"?([^\s\"]+)",
    "deploy/compose.yaml": r"^ +image: dragoman/\w+:(\S+)$",
    **dict.fromkeys(("README.md", "docs/deploy.md", "docs/kubernetes.md"), NAMED),
}
"""File -> what finds the version in it. In the changelog the first heading counts, in the others every match."""


def version(root: Path) -> str:
    """The version of the source in `root`."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def faults(root: Path, tag: str | None = None) -> list[str]:
    """What keeps the source in `root` from being released, as `tag` if there is one."""
    now = version(root)
    found = [] if FORM.fullmatch(now) else [f"pyproject.toml: {now} is not MAJOR.MINOR.PATCH"]
    for name, pattern in REPEATED.items():
        there = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        if name == "CHANGELOG.md":
            there = there[:1]
        if set(there) != {now}:
            found.append(f"{name}: {', '.join(there) or 'no version'}, but pyproject.toml has {now}")
    if tag is not None and tag != f"v{now}":
        found.append(f"the tag is {tag}, but this version's tag is v{now}")
    return found
