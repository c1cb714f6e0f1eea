"""Which trace a request belongs to, by W3C's rules."""

from __future__ import annotations

import pytest

from gateway.core.trace_context import trace_context

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAMED = (b"traceparent", PARENT)


def test_a_valid_context_is_found_among_other_headers() -> None:
    state = (b"tracestate", b"congo=t61rcWkgMzE,rojo@vendor=00f067aa0ba902b7")
    assert trace_context([(b"host", b"x"), NAMED, (b"accept", b"*/*"), state]) == [NAMED, state]
    longest = (b"tracestate", b"a=" + b"x" * 253 + b",b=" + b"x" * 254)
    assert trace_context([NAMED, longest]) == [NAMED, longest]
    assert trace_context([(b"host", b"x"), NAMED]) == [NAMED]
    assert trace_context([(b"host", b"x"), state]) == [], "a state without a parent is nobody's"


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"00",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + b"-extra",
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        PARENT.replace(b"-", b"_"),
        PARENT + b"\n",
        b"01" + PARENT[2:] + b"x",
        b"sk-secret",
    ],
)
def test_an_invalid_parent_is_no_context(parent: bytes) -> None:
    assert trace_context([(b"traceparent", parent), (b"tracestate", b"a=b")]) == []


def test_two_parents_are_none() -> None:
    assert trace_context([NAMED, NAMED]) == []


def test_a_newer_version_may_have_more() -> None:
    newer = (b"traceparent", b"01" + PARENT[2:] + b"-what-comes")
    assert trace_context([newer]) == [newer]


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"a",
        b"=b",
        b"A=b",
        b"a=b=c",
        b"a=b,a=c",
        b"a=" + b"x" * 257,
        b"a=" + b"x" * 253 + b",b=" + b"x" * 255,  # 513 bytes
        b"a=\x01",
        b"a=\xff",
        b",".join(b"k%d=v" % number for number in range(33)),
    ],
)
def test_an_invalid_state_is_left_out(state: bytes) -> None:
    assert trace_context([NAMED, (b"tracestate", state)]) == [NAMED]


def test_several_states_are_one_list() -> None:
    states = [(b"tracestate", b"a=b, c=d"), (b"tracestate", b" e=f ")]
    assert trace_context([NAMED, *states]) == [NAMED, (b"tracestate", b"a=b,c=d,e=f")]
