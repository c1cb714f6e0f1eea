"""The pages that `make docs` makes: they are whole, what they link to is there, and their English is plain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.observe.catalogue import FIGURES
from scripts import pages
from scripts.reference import options
from tests.acceptance.libraries.library import LIBRARIES
from tests.acceptance.libraries.readme import readme_lines
from tests.chaos import promises
from tests.chaos.row import PARTS, every_row
from tests.laws.fidelity.matrix import BACKENDS, DIALECTS
from tests.repo import test_prose, test_statements
from tests.repo.test_docs import broken_links
from tests.repo.tree import ROOT, tracked


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages, among what else they link to."""
    root = tmp_path_factory.mktemp("made")
    for entry in ROOT.iterdir():
        if entry.name != "docs":
            (root / entry.name).symlink_to(entry)
    pages.main(str(ROOT / "docs"), str(root / "docs"))
    return root / "docs"


def test_the_pages_are_whole(made: Path) -> None:
    assert {path.relative_to(ROOT / "docs") for path in tracked("docs/*.md")} <= {
        path.relative_to(made) for path in made.rglob("*.md")
    }
    assert options() in (made / "configuration.md").read_text()
    assert re.findall(r"^### `(\w+)`$", (made / "metrics.md").read_text(), re.MULTILINE) == list(FIGURES)
    table = (made / "libraries.md").read_text()
    assert [one.name for one in LIBRARIES if f"\n| {one.name} | {one.package} " not in table] == []
    text = (made / "clients.md").read_text()
    assert [name for name, line in readme_lines().items() if f"| {name} | `{line}` |" not in text] == []
    board = (made / "chaos.md").read_text()
    told, _, rows = board.partition("\n## Rows\n")
    assert [one.promise for part in promises.read() for one in part.promises if f"| {one.promise} |" not in told] == []
    assert re.findall(r"^### (\w+)", rows, re.MULTILINE) == list(every_row())
    assert board.count("\n**Passes if** ") == len(every_row())
    assert [name for name in PARTS if not re.search(rf"^### .*\b{name}\b", board, re.MULTILINE)] == []
    for name, dialect in DIALECTS.items():
        text = (made / "fidelity" / f"{name}.md").read_text()
        fields = re.findall(r"^\| `(.+?)` \| (\w+) \|", text, re.MULTILINE)
        assert fields == [(one.name, one.handling) for table in dialect.fields.values() for one in table]
        assert all(f"| {backend} |" in text for backend in BACKENDS)


def test_what_they_say_holds(made: Path) -> None:
    """The laws of the pages in git."""
    every = sorted(made.rglob("*.md"))
    assert broken_links(made.parent, every) == []
    for name in ("configuration.md", "metrics.md", "libraries.md", "chaos.md", "fidelity.md"):
        page = made / name
        test_statements.test_options_in_prose_exist(page)
        test_statements.test_metrics_in_pages_exist(page)
        test_statements.test_files_in_prose_exist(page)
    assert [fault for page in every for fault in test_prose.faults(page)] == []


@pytest.mark.parametrize("text", ["words", "<!-- made: begin -->", f"{pages.BEGIN}{pages.END}{pages.BEGIN}"])
def test_a_page_without_its_marks_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ValueError, match="needs one pair of marks"):
        pages.fill(tmp_path / "page.md", "made")
