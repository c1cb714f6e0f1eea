"""Which counters a subject has, and that no two subjects share one by accident."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limit
from gateway.config.sharing import Dimension
from gateway.ratelimit import Subject
from gateway.ratelimit.plan import Layout, Plans, RuleIndex, applies, plain, scaled
from tests.support.steps import steps

ALL = Limit(name="r", kind="requests", limit=9, scope=("key", "team", "model", "address", "end_user"))
words = st.text(max_size=80)


@given(words, words, words, words)
def test_no_two_subjects_share_a_counter(a: str, b: str, c: str, d: str) -> None:
    plans = Plans([ALL], Layout())
    one, two = Subject(a, "t", "m", "x", b), Subject(c, "t", "m", "x", d)
    assert (plans.of(one).keys == plans.of(two).keys) == (one == two)


@given(words)
def test_a_key_is_one_short_word(value: str) -> None:
    (key,) = Plans([ALL], Layout()).of(Subject(value, value, value, value, value)).keys
    assert key.isascii()
    assert len(key) < 400
    assert not set(b" \r\n\0") & set(key)
    assert key.count(b"{") == key.count(b"}") == 1


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002/64"),
        ("2001:db8:1:2::9%eth0", "20010db800010002/64"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("a:b", "a:b"),
    ],
)
def test_addresses_count_by_what_one_client_holds(address: str, counted: str) -> None:
    assert plain("address", address).lstrip("0") == counted


def test_counters_outlive_a_change_of_the_limit_only() -> None:
    def key(**more: object) -> bytes:
        rule = Limit(**{"name": "r", "kind": "tokens", "limit": 5, **more})  # type: ignore[arg-type]
        return Plans([rule], Layout()).of(Subject(key="k", team="t")).keys[0]

    assert key() == key(limit=7) == key(burst=2) == key(shadow=True)
    assert len({key(), key(per_s=61), key(kind="requests"), key(name="s"), key(scope=("team",)), key(scope=())}) == 6


def test_a_share_is_rounded_up_and_covers_local_rules_only() -> None:
    rules = [
        Limit(name="a", kind="requests", limit=10, burst=4),
        Limit(name="b", kind="requests", limit=10, on_redis_failure="open"),
        Limit(name="c", kind="concurrency", limit=2),
    ]
    plan = Plans(rules, Layout()).of(Subject(key="k"))
    share = scaled(plan, 4)
    assert [rule.name for rule in share.rules] == ["a", "c"]
    assert [shape.limit for shape in share.shapes] == [3, 1]
    assert share.shapes[0].burst == 1
    assert share.keys == (plan.keys[0], plan.keys[2])
    assert scaled(plan, 4) is share
    assert scaled(plan, 3) is not share


RULES = [
    Limit(name="a", kind="requests", limit=9, match={"model": ("m",)}),
    Limit(name="a", kind="requests", limit=9),
    Limit(name="b", kind="requests", limit=9),
    Limit(name="c", kind="concurrency", limit=9, scope=("team", "address")),
    Limit(name="d", kind="tokens", limit=9, scope=()),
    Limit(name="e", kind="requests", limit=9, scope=("model", "key")),
    Limit(name="f", kind="concurrency", limit=9, scope=(), match={"key": ("k",)}),
    Limit(name="g", kind="requests", limit=9, scope=("end_user",)),
]
some = st.sampled_from(["k", "m", "x"])


@given(st.permutations(RULES), st.integers(0, 8), some, some | st.none(), some, some | st.none())
def test_what_is_charged_early_and_what_later_is_what_is_charged_at_once(
    rules: list[Limit], count: int, key: str, team: str | None, model: str, address: str | None
) -> None:
    plans = Plans(rules[:count], Layout())
    whole = plans.of(Subject(key, team, model, address, key))
    early = plans.early(Subject(key, team, None, address))
    late = plans.of(Subject(key, team, model, address, key), early.keys)
    assert sorted(early.keys + late.keys) == sorted(whole.keys)
    assert {rule.kind for rule in early.rules} <= {"requests", "concurrency"}
    assert early.rules or not {"b", "f"} & {rule.name for rule in whole.rules}


values = st.sampled_from(["a", "b"])
matches = st.dictionaries(
    st.sampled_from(["key", "team", "model", "address"]), st.lists(values, min_size=1).map(tuple), max_size=3
)


@given(st.lists(st.tuples(values, matches), max_size=12), values, values | st.none(), values)
def test_rules_are_found_as_by_a_look_at_all(
    drawn: list[tuple[str, dict[Dimension, tuple[str, ...]]]], key: str, team: str | None, model: str
) -> None:
    rules = [Limit(name=name, kind="requests", limit=9, match=match) for name, match in drawn]
    subject = Subject(key, team, model)
    found = [rule for _, rule, _ in RuleIndex(rules).candidates(subject) if applies(rule, subject)]
    assert [id(rule) for rule in found] == [id(rule) for rule in rules if applies(rule, subject)]


def test_the_rules_of_other_keys_take_no_time() -> None:
    counts = []
    for keys in (10, 2000):
        rules = [Limit(name="r", kind="requests", limit=9, match={"key": (f"k{one}",)}) for one in range(keys)]
        index = RuleIndex([*rules, ALL])
        plans = Plans(index, Layout())
        counts.append(steps(lambda plans=plans: plans.of(Subject("k7", "t", "m", "x"))))  # type: ignore[misc]
        counts.append(steps(lambda index=index: Plans(index, Layout())))  # type: ignore[misc]
    assert counts[:2] == counts[2:]
