"""The taxonomy of failure."""

from __future__ import annotations

import errno
import re
import sys

import pytest

from gateway.core import errors
from gateway.core.errors import Blame, GatewayError, Kind

WORKERS = {Kind.UPSTREAM, Kind.TRUNCATED, Kind.TIMEOUT}
OURS = {Kind.OVERLOADED, Kind.NO_WORKER, Kind.DRAINING, Kind.INTERNAL}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_its_blame(kind: Kind) -> None:
    expected = Blame.WORKER if kind in WORKERS else Blame.US if kind in OURS else Blame.CLIENT
    assert GatewayError(kind, "x").blame is expected


def test_the_drawn_tree_is_the_code() -> None:
    """The picture at the top of the module names every kind once, under its blame."""
    document = sys.modules[errors.__name__].__doc__ or ""
    found: dict[str, Blame] = {}
    blame: Blame | None = None
    for line in document.splitlines():
        heading = re.match(r"\s+blame (\w+) ", line)
        if heading:
            blame = Blame[heading[1]]
        elif blame is not None and re.fullmatch(r"\s+[A-Z_ ]+", line):
            for name in line.split():
                assert name not in found
                found[name] = blame
    assert found == {kind.name: GatewayError(kind, "").blame for kind in Kind}


def test_what_lacks_a_descriptor_is_told_by_its_causes() -> None:
    short = OSError(errno.EMFILE, "too many open files")
    wrapped = RuntimeError("could not connect")
    wrapped.__cause__ = short
    late = ValueError("while that was handled")
    late.__context__ = wrapped
    assert all(errors.out_of_descriptors(one) for one in (short, wrapped, late, OSError(errno.ENFILE, "")))
    circle = RuntimeError("a")
    circle.__context__ = RuntimeError("b")
    circle.__context__.__context__ = circle
    assert not any(errors.out_of_descriptors(one) for one in (None, circle, ConnectionRefusedError(111, "refused")))


def test_codes_are_stable_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.value) for kind in Kind)
    assert len({kind.value for kind in Kind}) == len(Kind)


def test_what_is_said_is_kept() -> None:
    error = GatewayError(
        Kind.TIMEOUT,
        "late",
        param="timeout",
        code="deadline_exceeded",
        retry_after=1.5,
        blame=Blame.US,
        upstream=504,
        value=3,
        retryable=False,
    )
    assert str(error) == error.message == "late"
    assert (error.param, error.code, error.retry_after, error.upstream, error.value) == (
        "timeout",
        "deadline_exceeded",
        1.5,
        504,
        3,
    )
    assert error.blame is Blame.US
    assert not error.retryable
    assert repr(error) == "GatewayError(TIMEOUT, 'late', param='timeout', upstream=504)"


def test_what_is_not_said_is_unknown() -> None:
    error = GatewayError(Kind.INTERNAL, "x")
    assert (error.param, error.code, error.retry_after, error.upstream, error.value) == (None,) * 5
    assert error.retryable
