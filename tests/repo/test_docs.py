"""Documents: links lead somewhere, `make` targets and files that are named exist, CONTRIBUTING stays short."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, tracked, write

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
# In prose only inside backticks ("make sure" is no target), in fenced code at the start of a command.
MAKE_PROSE = re.compile(r"`make ([a-z][a-z-]*)")
MAKE_CODE = re.compile(r"^\s*(?:\$ )?make ([a-z][a-z-]*)", re.MULTILINE)
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)(.*)$", re.MULTILINE)
MOST_WORDS = 65_000
"""In README.md and the pages of docs/ together, as `wc -w` counts: bars of tables and fences are words, too."""
READ_FIRST = (
    "docs/architecture.md",
    "gateway/core/events.py",
    "gateway/core/ports",
    "gateway/kernel/serving.py",
    "gateway/dialects/openai.py",
)


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, punctuation gone, spaces to hyphens, repeats numbered."""
    seen: dict[str, int] = {}
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", LINK.sub(lambda m: m[0][1 : m[0].index("]")], heading).lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def broken_links(root: Path, documents: Iterable[Path]) -> list[str]:
    """Relative links to files or anchors that are not there."""
    found = []
    for document in documents:
        text = FENCE.sub("", document.read_text())
        for target in LINK.findall(text):
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (document.parent / name) if name else document
            if not path.exists():
                found.append(f"{document.relative_to(root)}: {target}: no such file")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                found.append(f"{document.relative_to(root)}: {target}: no such heading")
    return found


def targets(makefile: Path) -> dict[str, str]:
    """Named targets and the rest of their line."""
    return dict(TARGET.findall(makefile.read_text()))


def unknown_targets(root: Path, documents: Iterable[Path]) -> list[str]:
    """`make` targets that documents name and the Makefile lacks."""
    known = targets(root / "Makefile")
    found = []
    for document in documents:
        text = document.read_text()
        code = "\n".join(match[0] for match in FENCE.finditer(text))
        named = {*MAKE_PROSE.findall(FENCE.sub("", text)), *MAKE_CODE.findall(code)}
        found += [f"{document.relative_to(root)}: make {name}" for name in sorted(named - known.keys())]
    return found


def test_links_lead_somewhere() -> None:
    assert broken_links(ROOT, tracked("*.md")) == []


def test_named_targets_exist() -> None:
    assert unknown_targets(ROOT, tracked("*.md")) == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/architecture.md"])
def test_the_usual_documents_are_there(name: str) -> None:
    assert (ROOT / name).is_file()


def test_contributing_is_short_and_names_what_to_read_first() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= 80
    assert [name for name in READ_FIRST if name not in text] == []
    assert [name for name in READ_FIRST if not (ROOT / name).exists()] == []


def test_the_pages_stay_short() -> None:
    """Tables that a command can make belong into `make docs`. A higher bound is a decision, with its reason."""
    assert sum(len(path.read_text().split()) for path in tracked("README.md", "docs/*.md")) <= MOST_WORDS


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 720


def test_changelog_has_a_place_for_the_next_change() -> None:
    assert re.search(r"^## \[Unreleased\]$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_every_target_explains_itself_and_is_short() -> None:
    text = (ROOT / "Makefile").read_text()
    named = targets(ROOT / "Makefile")
    assert named
    assert [name for name, rest in named.items() if " ## " not in rest] == []
    for recipe in re.findall(r"(?:^\t.*\n)+", text, re.MULTILINE):
        assert recipe.count("\n") <= 5, recipe


GOOD = "# Top\n\n## The `next` step!\n\n[a](b.md#part-two) [c](#the-next-step) `make test`\n\n```sh\nmake lint\n```\n"
TREE = {"Makefile": "test: ## T\nlint: ## L\n", "a.md": GOOD, "b.md": "## Part two\n"}


def test_good_documents_pass(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    assert broken_links(tmp_path, [tmp_path / "a.md"]) == []
    assert unknown_targets(tmp_path, [tmp_path / "a.md"]) == []


@pytest.mark.parametrize("link", ["gone.md", "b.md#part-three", "#nowhere", "docs/x.md"])
def test_a_broken_link_is_found(tmp_path: Path, link: str) -> None:
    write(tmp_path, {**TREE, "a.md": f"{GOOD}[x]({link})\n"})
    assert len(broken_links(tmp_path, [tmp_path / "a.md"])) == 1


@pytest.mark.parametrize("text", ["`make tset`", "```\n$ make tset ARGS=x\n```", "`make tset ARGS=x`"])
def test_an_unknown_target_is_found(tmp_path: Path, text: str) -> None:
    write(tmp_path, {**TREE, "a.md": f"{GOOD}{text}\n"})
    assert unknown_targets(tmp_path, [tmp_path / "a.md"]) == ["a.md: make tset"]
