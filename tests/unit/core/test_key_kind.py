"""Keys of Redis by their kind."""

from __future__ import annotations

import re

import pytest

from gateway.core.key_kind import KeyKind


@pytest.mark.parametrize(
    ("form", "key", "fits"),
    [
        ("{NAMESPACE-keys}", "{a.b-keys}", True),
        ("{NAMESPACE-keys}", "{axb-keys}", False),
        ("{NAMESPACE-keys}", "{a.b-keys}:more", False),
        ("{NAMESPACE:PARTITION}:c:LIMIT:SCOPE", "{a.b:0}:c:few:address=::1", True),
        ("{NAMESPACE:PARTITION}:c:LIMIT:SCOPE", "{a.b:0}:c:few:", True),
        ("{NAMESPACE:PARTITION}:c:LIMIT:SCOPE", "{a.b:0}:r60:few:key=x", False),
        ("NAMESPACE:STREAM", "a.b:usage:{x}", True),
        ("NAMESPACE:STREAM", "other:usage", False),
    ],
)
def test_a_kind_has_the_keys_of_its_form_in_its_namespace(form: str, key: str, fits: bool) -> None:
    assert bool(re.fullmatch(KeyKind(form).pattern("a.b"), key)) is fits


def test_a_word_that_is_known_stands_for_itself() -> None:
    pattern = KeyKind("NAMESPACE:STREAM").pattern("a", STREAM="usage")
    assert [bool(re.fullmatch(pattern, key)) for key in ("a:usage", "a:stored:x:y")] == [True, False]
