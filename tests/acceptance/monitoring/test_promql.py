"""The reader of PromQL that the tests of alerts and dashboards rely on."""

from __future__ import annotations

import pytest

from tests.acceptance.monitoring.figures import KNOWN
from tests.acceptance.monitoring.promql import asked


@pytest.mark.parametrize(
    ("expression", "metrics", "grouped", "counted"),
    [
        ("absent(a_b)", {"a_b": set()}, set(), set()),
        ('up and on (job) last_over_time(x{a="by (q)",b!~"}"}[1h])', {"up": set(), "x": {"a", "b"}}, {"job"}, set()),
        (
            'histogram_quantile(0.9, sum by (le, m) (rate(vllm:t_bucket{n=~"$n"}[$__rate_interval])))',
            {"vllm:t_bucket": {"n"}},
            {"le", "m"},
            {"vllm:t_bucket"},
        ),
        ("increase(a[5m]) / ignoring (d) group_left () (b > 0.5)", {"a": set(), "b": set()}, {"d"}, {"a"}),
        ('(sum(a{x="1"}) or vector(0)) + a{y="2"}', {"a": {"x", "y"}}, set(), set()),
    ],
)
def test_what_is_asked_for(expression: str, metrics: dict[str, set[str]], grouped: set[str], counted: set[str]) -> None:
    found = asked(expression)
    assert (found.metrics, found.grouped, found.counted) == (metrics, grouped, counted)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("dragoman_requests_total", {"dialect", "operation", "model", "status", "outcome"}),
        ("dragoman_request_duration_seconds_bucket", {"dialect", "model", "le"}),
        ("dragoman_draining", set()),
        ("vllm:request_success_total", {"model_name", "engine", "finished_reason"}),
    ],
)
def test_metrics_are_known_with_their_labels(name: str, labels: set[str]) -> None:
    assert KNOWN[name] == labels
