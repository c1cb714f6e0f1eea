"""`python -m bench.peers.pages`: writes the kept comparison into README.md and docs/performance.md. With `--keep FILE`
the figures of that run are the kept ones from now on. `make plots` draws the charts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.peers import page, targets
from bench.peers.page import Comparison

ROOT = Path(__file__).resolve().parents[2]
_FIGURES = ("plain 1 KB", "chunk", "idle memory")
_SUBJECTS = {"dragoman": "**Dragoman**", "sglang-router": "sglang-router", "smg full": "SMG", "litellm": "LiteLLM"}
KEPT = Path(__file__).with_name("kept.json")
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


def kept() -> Comparison:
    """The comparison that the pages show."""
    return msgspec.json.decode(KEPT.read_bytes(), type=Comparison)


def readme(found: Comparison) -> str:
    """README.md's part: the medians of a few figures and subjects."""
    shown = [(subject, name) for subject, name in _SUBJECTS.items() if subject in found.versions]
    head = ["", *(page.TITLES[figure] for figure in _FIGURES)]
    rows = [[name, *(page.middle(found, figure, subject) for figure in _FIGURES)] for subject, name in shown]
    return (
        "Keys, three limits in Redis, prefix-aware routing, metrics and a log record are on; CPU of the process tree "
        "([docs/performance.md](docs/performance.md), `make bench-peers`):\n\n" + page.table(head, rows, 1)
    )


def performance(found: Comparison) -> str:
    """What docs/performance.md shows: everything."""
    return "\n\n".join(
        [
            "The middle of the rounds, and in brackets the least and most of them:",
            page.spread(found),
            "Features that were on and off:",
            page.on(found),
            f"{targets.summed_up(found)} A ratio is the middle of the rounds' ratios, with the least and most of them:",
            targets.markdown(found),
            f"{page.facts(found)}.",
        ]
    )


PAGES = {"README.md": readme, "docs/performance.md": performance}
"""Page -> what it holds between the two marks."""


def filled(text: str, part: str) -> str:
    """`text` with `part` between the marks. Raises ValueError if it lacks them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.pages", description="Writes the comparison's tables.")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="the run whose figures are shown from now on")
    options = parser.parse_args(arguments)
    if options.keep is not None:
        KEPT.write_bytes(page.encode(msgspec.json.decode(options.keep.read_bytes(), type=Comparison)))
    found = kept()
    for name, part in PAGES.items():
        path = ROOT / name
        path.write_text(filled(path.read_text(), part(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
