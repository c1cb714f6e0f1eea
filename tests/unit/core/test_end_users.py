"""Names of end users: bounded, and without a name where there is a secret."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.end_users import end_user

SECRET = "s" * 32
names = st.text(max_size=300) | st.text(min_size=1, max_size=5).map(lambda text: text * 2_000)


@given(names, names)
def test_a_name_is_short_and_printable_and_of_one_user_alone(one: str, two: str) -> None:
    for secret in (None, SECRET):
        first, second = end_user(one, secret), end_user(two, secret)
        assert first is None or (1 <= len(first) <= 128 and first.isprintable())
        assert (first is None) == (not one.strip())
        if one[:4096].strip() != two[:4096].strip():
            assert first != second


def test_a_plain_name_stays_as_it_is() -> None:
    assert end_user(" ann@example.com ") == "ann@example.com"
    assert end_user("Ann Åström") == "Ann Åström"


def test_a_secret_leaves_nothing_of_a_name() -> None:
    found = end_user("ann@example.com", SECRET)
    assert found == end_user(" ann@example.com", SECRET)
    assert found is not None
    assert len(found) == 32
    assert found != end_user("ann@example.com", SECRET[1:] + "t")


def test_what_is_read_of_a_name_is_bounded() -> None:
    huge = "a" * 30_000_000
    assert end_user(huge) != end_user(huge[1:])
    assert end_user(huge) == end_user(huge[:4096] + "b" * (len(huge) - 4096))
