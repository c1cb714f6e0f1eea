"""Cases of one law that are near-identical: `make test` takes a share of them, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")


def sampled(cases: Iterable[T], one_in: int, of: Callable[[T], object] = lambda case: None) -> list[Any]:
    """Values for `parametrize`: one in so many is drawn, the same in each run, and all others are marked `long`.

    of: the kind of a case, such as its dialect: of each kind at least one case is drawn.
    """
    found, kinds = list(cases), dict[object, list[int]]()
    for place, case in enumerate(found):
        kinds.setdefault(of(case), []).append(place)
    draw = Random(len(found))
    kept = {place for places in kinds.values() for place in draw.sample(places, -(-len(places) // one_in))}
    return [case if place in kept else _long(case) for place, case in enumerate(found)]


def examples(full: int) -> int:
    """How many examples a law draws that draws `full` of them by `make test-long`."""
    return full * settings().max_examples // 100


def of_dialect(way: Any) -> object:
    return way.dialect


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) and not hasattr(case, "_fields") else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
