"""The promises: every row, test and option that they name exists, and nothing is missing."""

from __future__ import annotations

import pytest

from scripts.reference import defaults
from tests.chaos.promises import Promise, read
from tests.chaos.row import PARTS, every_row
from tests.repo.tree import ROOT

SECTIONS = ("deadlines", "relay", "retry", "health", "breaker", "queue", "listen")
"""Every option of these is a promise."""
NO_PROMISE = {"listen.host", "listen.port", "relay.native"}
PROMISES = [promise for part in read() for promise in part.promises]
OPTIONS = defaults()


def wrong(promise: Promise) -> list[str]:
    """What is named and is not there."""
    found = [f"no option {one}" for one in promise.options if one not in OPTIONS]
    for proof in promise.proofs:
        path, _, name = proof.partition("::")
        if path.startswith("tests/"):
            text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
            if "def test_" not in text or (name and f"def {name}(" not in text):
                found.append(f"no test {proof}")
        elif proof not in every_row():
            found.append(f"no row {proof}")
    return found


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.promise[:40])
def test_what_a_promise_names_is_there(promise: Promise) -> None:
    assert wrong(promise) == []


def test_every_row_proves_a_promise() -> None:
    named = {proof for promise in PROMISES for proof in promise.proofs}
    rows = set(every_row())
    assert rows - named == set(), "a line for each is missing in tests/chaos/promises.yaml"
    assert set(PARTS.values()) <= rows


def test_every_option_of_these_sections_is_a_promise() -> None:
    named = {option for promise in PROMISES for option in promise.options}
    wanted = {option for option in OPTIONS if option.partition(".")[0] in SECTIONS and option.count(".") == 1}
    assert wanted - named - NO_PROMISE == set(), "a line for each is missing in tests/chaos/promises.yaml"


@pytest.mark.parametrize(
    ("option", "proof"),
    [
        ("retry.nothing", "F3"),
        ("retry.attempts", "F99"),
        ("retry.attempts", "tests/gone.py"),
        ("retry.attempts", "tests/unit/cli/test_commands.py::test_nothing"),
    ],
)
def test_what_is_not_there_is_found(option: str, proof: str) -> None:
    assert wrong(Promise("a", [proof], [option]))
