"""Comments, docstrings, messages and pages are plain English: the rules of it that a search can check.

`python -m tests.repo.test_prose` lists every sentence that breaks one, with its place.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, tracked

_MACHINES = (
    "gateways?|workers?|clients?|engines?|servers?|prox(?:y|ies)|gateway process(?:es)?|backends?|dialects?"
    r"|logs?|pages?|logins?|`/\w+`"
)
RULES = {
    "no sentence opens with Of, What, Who, Whoever, Else or Where": re.compile(
        r"(?:^|[.:;] )(?:[-*\d.]+ )?(?:\*\*)?(?:Of|What|Who|Whoever|Else|Where)\b[ ,][^?]*?(?:[.:]|$)", re.MULTILINE
    ),
    "name the caller, client or reader instead of whoever": re.compile(r"\b[Ww]ho(?:ever|mever)\b"),
    "machines log, return, report, read; they do not tell, say, hear": re.compile(
        rf"\b(?:{_MACHINES}) (?:tells?|told|says?|said|hears?|heard)\b|\b(?:is|are|was|were|be|been) told\b"
    ),
    "not a, never no for not a": re.compile(
        r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer|more|less|other|such|faster|slower|larger|smaller)"
    ),
    "must be, not is to be": re.compile(r"\b(?:is|are|was|were) to be\b|\bto be had\b|\bin vain\b|\bamid\b|\banew\b"),
}
MOST_WORDS = 25
"""In a cell of a table."""
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"(?<!\\)\|")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings, the messages (constants of several words) and the comments of a module.
    Comments in consecutive lines are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 2:
            yield node.lineno, re.sub(r"\s+", " ", node.value)
    lines: list[str] = []
    at = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != at + 1:
                yield at - len(lines) + 1, " ".join(lines)
                lines = []
            at = token.start[0]
            lines.append(token.string.lstrip("# "))
    if lines:
        yield at - len(lines) + 1, " ".join(lines)


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the paragraphs, items and table rows of a page, without its code and its headings."""
    page = _FENCE.sub(lambda code: "\n" * code[0].count("\n"), page)
    for found in re.finditer(r"(?:^(?![|\n#]).+\n?)+|^\|.*", page, re.MULTILINE):
        yield page.count("\n", 0, found.start()) + 1, re.sub(r"\s+", " ", re.sub(r"^[-*>\d. ]+", "", found[0])).strip()


def broken(text: str) -> Iterator[str]:
    """The rules that `text` breaks, each with the words that do."""
    for rule, pattern in RULES.items():
        for found in pattern.finditer(text):
            yield f"{rule}: {found[0].strip()[:80]!r}"


def wide(row: str) -> Iterator[str]:
    """The cells of a table's row that hold too many words."""
    for cell in _CELL.split(row.strip().strip("|")):
        if len(cell.split()) > MOST_WORDS:
            yield f"a cell of {len(cell.split())} words: {cell.strip()[:60]!r}"


def faults(path: Path) -> list[str]:
    """What is wrong with a module or a page, as `file:line: rule: words`."""
    name, source = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name, path.read_text()
    found = []
    for line, text in texts(source) if path.suffix == ".py" else paragraphs(source):
        found += [f"{name}:{line}: {fault}" for fault in broken(text)]
        if text.startswith("|"):
            found += [f"{name}:{line}: {fault}" for fault in wide(text)]
    return found


def checked() -> list[Path]:
    return tracked("gateway/*.py", "workers/*.py", "docs/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("path", checked(), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path: Path) -> None:
    assert faults(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "Of those one is left.",
        "Fine. Where it stands, it stays",
        "it is refused, whoever asks",
        "a worker says so",
        "the client is told",
        "that is no reason",
        "is to be done",
    ],
)
def test_a_hard_sentence_is_found(text: str) -> None:
    assert len(list(broken(text))) == 1


def test_plain_sentences_pass() -> None:
    plain = "There is no usage. A worker, where it stands, is fine. It is no longer so. What is it? Workers report."
    assert list(broken(plain)) == []


def test_texts_are_found_where_they_stand() -> None:
    source = '"""One two three four."""\nx = 1  # a\n# goes on\ny = f"five six {x} seven eight nine ten"\n'
    assert [line for line, _ in texts(source)] == [1, 4, 2]
    page = "# Title\n\nOne\ntwo.\n\n```\nOf code\n```\n| a | b |\n"
    assert list(paragraphs(page)) == [(3, "One two."), (9, "| a | b |")]
    assert len(list(wide("| a | " + "word " * 26 + "|"))) == 1


if __name__ == "__main__":
    listed = [fault for path in checked() for fault in faults(path)]
    print(*listed, f"{len(listed)} in all", sep="\n")
    sys.exit(bool(listed))
