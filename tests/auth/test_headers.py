"""One module knows which headers carry keys."""

from __future__ import annotations

import pytest

from gateway.auth.headers import KEY_HEADERS, find_key, holds_key, shown_keys
from gateway.core.http import Headers
from tests.repo.tree import ROOT


def test_no_other_module_names_a_header_for_keys() -> None:
    names = [name.decode() for name in KEY_HEADERS]
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if path != ROOT / "gateway" / "auth" / "headers.py"
        for name in names
        if any(f"{quote}{name}{quote}" in path.read_text().lower() for quote in "\"'")
    ]
    assert found == []


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
