"""The pages with their generated parts, which git does not hold: a copy of docs/ whose marks are filled.

`make docs` runs `python -m scripts.pages docs build/docs`.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from pathlib import Path

from scripts.reference import defaults, metrics, options
from tests.acceptance.libraries.readme import AGENTS, VARIABLES, readme_lines
from tests.acceptance.libraries.table import tables
from tests.chaos import promises
from tests.chaos.row import PARTS, every_row
from tests.laws.fidelity import matrix

BEGIN, END = "<!-- made: begin -->", "<!-- made: end -->"
"""Between them a page in git says where its generated part is found."""
_MADE = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)


def main(source: str, target: str) -> None:
    """Copies the folder `source` to `target`, which is replaced, and fills the pages there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    made = {
        "configuration": options(),
        "metrics": metrics(),
        "libraries": tables(),
        "clients": clients(),
        "chaos": f"{promised()}\n{rows()}",
        "fidelity": matrix.index(),
    }
    for name, text in made.items():
        fill(Path(target, f"{name}.md"), text)
    fields = Path(target, "fidelity")
    fields.mkdir()
    for dialect, text in matrix.pages(list(matrix.rows())).items():
        (fields / f"{dialect}.md").write_text(text, encoding="utf-8")


def fill(page: Path, made: str) -> None:
    """Puts `made` where the marks of `page` stand. Raises ValueError if it has not exactly one pair of them."""
    text, count = _MADE.subn(lambda _: made.strip("\n"), page.read_text(encoding="utf-8"))
    if count != 1 or BEGIN in text or END in text:
        raise ValueError(f"{page} needs one pair of marks: {BEGIN} and {END}")
    page.write_text(text, encoding="utf-8")


def clients() -> str:
    """A table of the lines of libraries; the page in git has those of agents."""
    parts = ["| library | its line |", "|---|---|"]
    named = (*AGENTS, *VARIABLES)
    return "\n".join(
        [*parts, *(f"| {name} | `{line}` |" for name, line in readme_lines().items() if name not in named)]
    )


def promised() -> str:
    """A table of the promises about each subject, with their options, defaults and proofs."""
    default = defaults()
    parts = ["## Promises\n"]
    for part in promises.read():
        parts += [f"### {part.title}\n", "| promise | option | default | proof |", "|---|---|---|---|"]
        for one in part.promises:
            chosen = ", ".join(f"`{option}`" for option in one.options)
            values = ", ".join(filter(None, (default[option] for option in one.options)))
            proofs = ", ".join(f"`{proof}`" if "/" in proof else proof for proof in one.proofs)
            parts.append(f"| {one.promise} | {chosen} | {values if one.options else 'always'} | {proofs} |")
        parts.append("")
    return "\n".join(parts)


def rows() -> str:
    """What the docstring of each row of the scoreboard says."""
    parts = ["## Rows\n"]
    for name, (title, function) in every_row().items():
        held = [one for one, holder in PARTS.items() if holder == name]
        also = f" (and {', '.join(held)})" if held else ""
        parts.append(f"### {name}{also}\n\n*{title}*\n\n{inspect.getdoc(function)}\n")
    return "\n".join(parts).replace("\nPasses if ", "\n**Passes if** ")


if __name__ == "__main__":
    main(*sys.argv[1:])
