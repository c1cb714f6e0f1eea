"""One module knows which headers carry keys."""

from __future__ import annotations

import re

import pytest

from gateway.auth.headers import KEY_HEADERS, find_key, holds_key, shown_keys
from gateway.core.http import Headers
from gateway.dialects import REGISTRY
from tests.repo.tree import ROOT


def test_no_other_module_names_a_header_for_keys() -> None:
    """But a dialect may say which one its API's clients use."""
    names = "|".join(re.escape(name.decode()) for name in KEY_HEADERS)
    named = re.compile(rf"""^(?!    key_header = b).*["']({names})["']""", re.MULTILINE | re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {match[1]}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if path != ROOT / "gateway" / "auth" / "headers.py"
        for match in named.finditer(path.read_text())
    ]
    assert found == []


def test_the_header_that_an_apis_clients_use_is_one_of_them() -> None:
    used = {getattr(dialect, "key_header", b"authorization") for dialect in REGISTRY.values()}
    assert len(used) > 2
    assert used <= {*KEY_HEADERS, b"authorization"}


@pytest.mark.parametrize("name", sorted(KEY_HEADERS))
def test_each_of_them_carries_a_key(name: bytes) -> None:
    headers: Headers = [(b"host", b"x"), (name, b" a-key ")]
    assert find_key(headers) == b"a-key"
    assert holds_key(headers)
    assert list(shown_keys(headers)) == [b"a-key"]
    assert not holds_key([(name, b" ")])


def test_what_stands_in_authorization_is_shown_in_any_form() -> None:
    for value in (b"Bearer a-key", b"Bearer: a-key", b"a-key", b"Basic a-key"):
        assert list(shown_keys([(b"authorization", value)])) == [b"a-key"]
    assert list(shown_keys([(b"authorization", b"")])) == []
