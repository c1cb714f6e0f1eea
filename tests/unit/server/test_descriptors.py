"""The limit on open files, and the client connections that fit in."""

from __future__ import annotations

import resource

import pytest

from gateway.server.descriptors import RESERVED, fitting_connections

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 1_048_576, 20_000 + RESERVED, 10_000),
        (1024, INFINITY, 20_000 + RESERVED, 10_000),
        (1024, 4096, 4096, (4096 - RESERVED) // 2),
        (256, 256, 256, (256 - RESERVED) // 2),
        (65_536, 65_536, 65_536, 10_000),
        (INFINITY, INFINITY, INFINITY, 10_000),
        (20, 20, 20, 1),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_connections_fit_into_it(
    soft: int, hard: int, raised: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = (soft, hard)

    def change(which: int, changed: tuple[int, int]) -> None:
        nonlocal limits
        limits = changed

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", change)
    assert fitting_connections(10_000) == connections
    assert limits == (raised, hard)


def test_a_system_that_lets_no_limit_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, changed: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert fitting_connections(10_000) == (256 - RESERVED) // 2
