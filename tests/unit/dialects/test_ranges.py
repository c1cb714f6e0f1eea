"""Numbers beyond the range that a dialect's page gives are refused, and no others; so in every dialect.

A page without a range for a field has OpenAI's (docs/dialects/openai.md); where neither gives one, any number is read.
"""

from __future__ import annotations

import json
import re

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Field, with_field
from gateway.core.http import Request
from gateway.wire.openai.media.requests import MOST_IMAGES
from tests.repo.tree import ROOT
from tests.support.clients import DIALECTS, WAYS, Way

Range = tuple[float, float, bool]  # from, to, and whether `from` is beyond it

FREE: Range = (-(2.0**63), 2.0**64, False)
# JSON's numbers are read up to these in every dialect.
PROBES = (-(2**63), -(10**6), -101, -3, -2, -1, 0, 1, 2, 3, 11, 21, 32, 65, 129, 1025, 2**31, 10**15 + 1, 2**63 - 1)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_NUMBER = r"(-?[0-9]+(?:\^[0-9]+)?(?:-1)?)"
_FORMS = [re.compile(form.replace("N", _NUMBER)) for form in ("N to N", "(above|at least) N", "at most N")]


def plain(text: str) -> str:
    """`text` with minus signs and powers as Python has them: 2^31-1."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda found: "^" + found[0].translate(_POWERS), text)
    return text.replace("\N{MINUS SIGN}", "-")


def value_of(number: str) -> float:
    power = re.fullmatch(r"(-?[0-9]+)\^([0-9]+)(-1)?", number)
    if power is None:
        return int(number)
    value: int = int(power[1]) ** int(power[2])
    return value - bool(power[3])


def rows(dialect: str) -> list[tuple[set[str], str]]:
    """The page's rows about fields: their names, and what is said of them."""
    found = []
    for line in plain((ROOT / f"docs/dialects/{dialect}.md").read_text()).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) > 1:
            names = re.findall(r"`([a-zA-Z_.-]+)`", cells[0])
            outer = next((name.partition(".")[0] for name in names if "." in name), "")
            found.append(({outer + name if name.startswith(".") else name for name in names}, cells[-1]))
    return found


ROWS = {name: rows(name) for name in DIALECTS}


def given(dialect: str, name: str, chat: bool) -> Range | None:
    """The range of the field `name` on the page of `dialect`."""
    for names, said in ROWS[dialect]:
        if name in names:
            for other in names:  # a row may say each field's own
                said = re.sub(rf"`{re.escape(other)}`", "\n" if other != name else "\r", said)
            text = re.split(r"\n", said.rpartition("\r")[2])[0]
            if chat and "of a chat at least 1" in text:
                return 1, 2**31 - 1, False
            text = re.split(r"; |\. ", text)[0]
            both, low, high = (form.search(text) for form in _FORMS)
            if both:
                return value_of(both[1]), value_of(both[2]), False
            if low or high:
                least = value_of(low[2]) if low else FREE[0]
                return least, value_of(high[1]) if high else FREE[1], bool(low and low[1] == "above")
    return None


def expected(way: Way, field: Field) -> Range:
    places = [(page, name) for page in (way.dialect, "openai") for name in (field.name, *field.targets)]
    found = (given(page, name, way.operation == "chat") for page, name in places)
    return next((one for one in found if one is not None), FREE)


def is_read(way: Way, field: Field, value: float) -> bool:
    """Raises GatewayError if the refusal is not about the value."""
    body = {**with_field(way.body(), field, value), "model": "m"}
    try:
        DIALECTS[way.dialect].read(
            Request("POST", way.path(), [], json.dumps(body).encode(), way.example.query, way.route.name)
        )
    except GatewayError as error:
        if error.kind not in (Kind.BAD_REQUEST, Kind.UNSUPPORTED):
            raise
        return False
    return True


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_number_is_refused_but_beyond_the_pages_range(way: Way) -> None:
    wrong = []
    for field in DIALECTS[way.dialect].fields[way.operation]:
        sample = field.sample
        if field.where != "body" or field.handling == "refused" or type(sample) not in (int, float):
            continue
        chat = way.operation == "chat"
        own = given(way.dialect, field.name, chat) or FREE
        low, high, beyond = expected(way, field) if field.handling != "ignored" else own
        whole = {int(bound + step) for bound in (low, high) if abs(bound) < 2**62 for step in (-1, 0, 1)}
        halves = {bound + step for bound in (low, high) for step in (-0.5, 0.5)} if isinstance(sample, float) else set()
        for value in sorted({*PROBES, *whole, *halves}):
            within = (low < value if beyond else low <= value) and value <= high
            if (way.operation, field.name) == ("draw", "n"):
                within = 1 <= value <= MOST_IMAGES
            if (way.dialect, field.name, value) == ("ollama_style", "options.num_predict", 0):
                within = False
            if is_read(way, field, value) is not within:
                wrong.append(
                    f"{field.name}: {value} is {'refused' if within else 'read'}, the page has {low} to {high}"
                )
    assert wrong == []


def test_ranges_are_found_on_the_pages() -> None:
    assert given("ollama_style", "min_p", True) == (0, 1, False)
    assert given("ollama_style", "repetition_penalty", True) == (0, 10, True)
    assert given("friendli", "seed", True) == (0, 2**63 - 1, False)
    assert given("openai", "max_tokens", False) == (0, 2**31 - 1, False)
    assert given("friendli", "logit_bias", True) is None
