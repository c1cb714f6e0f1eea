"""`python -m gateway.observe FOLDER`: writes the part of metrics.md in FOLDER that is made from the catalogue."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.observe.catalogue import GROUPS

BEGIN = "<!-- made by `make docs` from gateway/observe/catalogue.yaml: do not edit -->"


def documented(page: str) -> str:
    """`page` with everything from the mark `BEGIN` on generated again. Raises ValueError if the page lacks the mark."""
    if BEGIN not in page:
        raise ValueError(f"the page lacks its mark: {BEGIN}")
    return page.partition(BEGIN)[0] + _described()


def _described() -> str:
    parts = [BEGIN]
    for group in GROUPS:
        parts += ["", f"## {group.title}", ""]
        parts += [group.text, ""] if group.text else []
        for figure in group.figures:
            labels = ", ".join(f"`{label}`" for label in figure.labels) or "no labels"
            parts += [f"### `{figure.name}`", "", f"{figure.kind.capitalize()}; {labels}.", "", figure.text, ""]
            if figure.bounds:
                parts += ["Buckets: " + ", ".join(f"{bound:g}" for bound in figure.bounds) + ".", ""]
            parts += ["```promql", figure.query, "```", ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(arguments[0]) / "metrics.md"
    path.write_text(documented(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
