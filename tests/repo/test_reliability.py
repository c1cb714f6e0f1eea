"""docs/reliability.md: every row, test and option that it names exists, its defaults are right, nothing is missing."""

from __future__ import annotations

import re

import pytest
from msgspec import Struct

from tests.chaos.row import PARTS, every_row
from tests.repo.tree import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text()
SECTIONS = ("deadlines", "relay", "retry", "health", "breaker", "queue", "listen")
"""Every option of these is a promise."""
NO_PROMISE = {"listen.host", "listen.port", "relay.native"}
_CODE = re.compile(r"`([^`]+)`")


class Promise(Struct):
    text: str
    options: list[str]
    default: str
    proofs: list[str]


def promises(page: str) -> list[Promise]:
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] not in ("promise", "---"):
            text, options, default, proof = cells
            proofs = [one.strip("` ") for one in proof.split(",")]
            found.append(Promise(text, _CODE.findall(options), default, proofs))
    return found


def reference() -> dict[str, str]:
    """Option -> its default, as the configuration reference has them: `section.option`, and the name alone of those in
    lists and mappings."""
    found, section = {}, ""
    for line in (ROOT / "docs/configuration.md").read_text().splitlines():
        if heading := re.match(r"### `([^`]+)`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \| .*? \| (.*?) \| ", line):
            default = row[2].strip("` ")
            found[f"{section}.{row[1]}"] = default
            if re.search(r"NAME|\[\]", section) or not section:
                found.setdefault(row[1], default)
    return found


OPTIONS = reference()
PROMISES = promises(PAGE)


def wrong(promise: Promise) -> list[str]:
    """What is named and is not there."""
    found = [f"no option {one}" for one in promise.options if one not in OPTIONS and one != "auth"]
    if promise.options:
        told = [one.strip("` ") for one in promise.default.split(",")]
        has = [word.strip("` ") for one in promise.options for word in OPTIONS.get(one, "").split(",")]
        if promise.options != ["auth"] and told != has:
            found.append(f"defaults are {has}, not {told}")
    elif promise.default != "always":
        found.append("without an option it is so always")
    for proof in promise.proofs:
        path, _, name = proof.partition("::")
        if path.startswith("tests/"):
            text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
            if "def test_" not in text or (name and f"def {name}(" not in text):
                found.append(f"no test {proof}")
        elif proof not in every_row():
            found.append(f"no row {proof}")
    return found


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.text[:40])
def test_what_a_promise_names_is_there(promise: Promise) -> None:
    assert wrong(promise) == []


def test_every_row_proves_a_promise() -> None:
    named = {proof for promise in PROMISES for proof in promise.proofs}
    rows = set(every_row())
    assert rows - named == set(), "a line for each is missing in docs/reliability.md"
    assert set(PARTS.values()) <= rows


def test_every_option_of_these_sections_is_a_promise() -> None:
    named = {option for promise in PROMISES for option in promise.options}
    wanted = {option for option in OPTIONS if option.partition(".")[0] in SECTIONS and option.count(".") == 1}
    assert wanted - named - NO_PROMISE == set(), "a line for each is missing in docs/reliability.md"


@pytest.mark.parametrize(
    "line",
    [
        "| a | `retry.nothing` | `3` | F3 |",
        "| a | `retry.attempts` | `4` | F3 |",
        "| a | | sometimes | F3 |",
        "| a | | always | F99 |",
        "| a | | always | `tests/gone.py` |",
        "| a | | always | `tests/unit/cli/test_commands.py::test_nothing` |",
    ],
)
def test_what_is_not_there_is_found(line: str) -> None:
    (promise,) = promises(line)
    assert wrong(promise)
