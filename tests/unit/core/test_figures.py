"""Plain numbers that are added up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.figures import Histogram

BOUNDS = (0.5, 1.0, 2.0)


@given(st.lists(st.floats(0, 10) | st.sampled_from(BOUNDS)))
def test_each_value_is_counted_once_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    plain, traced, together = Histogram(BOUNDS), Histogram(BOUNDS), Histogram(BOUNDS)
    together.add_all(values[:3])
    together.add_all(values[3:])
    for value in values:
        plain.add(value)
        traced.add_traced(value, "trace", 1.0)
    expected = [0] * 4
    for value in values:
        expected[next((index for index, bound in enumerate(BOUNDS) if value <= bound), 3)] += 1
    assert plain.counts == traced.counts == together.counts == expected
    assert plain.total == traced.total == pytest.approx(sum(values)) == together.total
    assert plain.exemplars == {}
    assert sorted(traced.exemplars) == [index for index, count in enumerate(expected) if count]


def test_the_last_traced_value_of_a_bucket_is_its_exemplar() -> None:
    figures = Histogram(BOUNDS)
    figures.add_traced(0.1, "first", 1.0)
    figures.add_traced(0.2, "second", 2.0)
    figures.add_traced(9.0, "large", 3.0)
    assert figures.exemplars == {0: ("second", 0.2, 2.0), 3: ("large", 9.0, 3.0)}
