"""The text of `/metrics`: in small pieces that make one page, in both forms."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.ports import RequestRecord
from gateway.observe import exposition
from gateway.observe.metrics import Metrics
from tests.support.harness import Stack
from tests.support.steps import rounds

read_open: Any = open_parser.text_string_to_metric_families
OPEN = b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def large() -> Metrics:
    """More series than one piece holds."""
    metrics = Metrics()
    for number in range(500):
        metrics.begun("openai")
        metrics.finished(
            RequestRecord(
                id="id",
                dialect="openai",
                operation="chat",
                model=f"model-{number}",
                status=200,
                duration_ms=1.0,
                attempts=1,
            )
        )
    return metrics


@pytest.mark.parametrize("accept", [b"", OPEN])
def test_pieces_are_small_and_make_one_page(accept: bytes) -> None:
    pieces = list(exposition.slices(large().registry, accept))
    assert max(piece.count(b"\n") for piece in pieces) <= 102
    page = b"".join(pieces).decode()
    assert page.count("# TYPE dragoman_requests_total" if not accept else "# TYPE dragoman_requests ") == 1
    assert page.count("# EOF") == page.endswith("# EOF\n") == bool(accept)
    read = read_open if accept else text_string_to_metric_families
    found = {family.name: family for family in read(page)}
    assert len(found["dragoman_requests"].samples) == 500
    assert {sample.labels["model"] for sample in found["dragoman_request_duration_seconds"].samples} == {
        f"model-{number}" for number in range(500)
    }


@pytest.mark.long
def test_both_ways_give_the_librarys_own_page() -> None:
    from prometheus_client import generate_latest
    from prometheus_client.openmetrics import exposition as open_exposition

    generate_open: Any = open_exposition.generate_latest
    metrics = large()
    assert metrics.page() == generate_latest(metrics.registry)
    assert metrics.page(OPEN) == generate_open(metrics.registry)


async def test_others_have_their_turn_while_it_is_made() -> None:
    ticks = count()
    pieces = list(exposition.slices(large().registry, b""))
    with rounds() as turned:
        # By this clock every piece takes longer than a turn.
        page = await exposition.in_turns(iter(pieces), clock=lambda: float(next(ticks)))
    assert page == b"".join(pieces)
    assert turned[0] >= len(pieces) > 100


def test_a_traced_request_is_an_exemplar_of_its_bucket_in_openmetrics_alone() -> None:
    metrics = Metrics(genai=True)
    metrics.begun("openai")
    record = RequestRecord(
        id="id",
        dialect="openai",
        operation="chat",
        model="m",
        status=200,
        duration_ms=30.0,
        time_to_first_token_ms=20.0,
        attempts=1,
        trace=TRACE,
    )
    metrics.finished(record)
    assert TRACE not in metrics.page().decode()
    found = {
        sample.name: (sample.labels["le"], sample.exemplar)
        for family in read_open(metrics.page(OPEN).decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert {name: bound for name, (bound, _) in found.items()} == {
        "dragoman_request_duration_seconds_bucket": "0.05",
        "dragoman_added_seconds_bucket": "0.05",
        "dragoman_time_to_first_token_seconds_bucket": "0.025",
        "gen_ai_server_request_duration_seconds_bucket": "0.04",
        "gen_ai_server_time_to_first_token_seconds_bucket": "0.02",
    }
    assert all(exemplar.labels == {"trace_id": TRACE} and exemplar.timestamp for _, exemplar in found.values())
    assert found["dragoman_request_duration_seconds_bucket"][1].value == 0.03


def test_a_metric_that_is_not_described_cannot_be_made() -> None:
    for make in (exposition.family, exposition.histogram):
        with pytest.raises(KeyError):
            make("dragoman_secret", [])
    with pytest.raises(KeyError):
        exposition.new_histogram("dragoman_secret")


def test_an_empty_histogram_is_whole() -> None:
    shown = exposition.histogram(
        "dragoman_loop_lag_seconds", [((), exposition.new_histogram("dragoman_loop_lag_seconds"))]
    )
    assert [(sample.name, sample.value) for sample in shown.samples[-3:]] == [
        ("dragoman_loop_lag_seconds_bucket", 0.0),
        ("dragoman_loop_lag_seconds_count", 0.0),
        ("dragoman_loop_lag_seconds_sum", 0.0),
    ]
    assert list(exposition.slices(CollectorRegistry(), b"")) == []


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (OPEN.decode(), "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("text/plain", "text/plain"),
        ("*/*", "text/plain"),
        ("application/openmetrics-text;version=nonsense", "application/openmetrics-text"),
    ],
)
def test_a_scraper_gets_what_it_accepts(accept: str, kind: str) -> None:
    with Stack() as stack:
        answer = httpx.get(stack.url + "/metrics", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(kind)
        assert answer.text.endswith("# EOF\n") == kind.startswith("application")
        assert httpx.head(stack.url + "/metrics", headers={"accept": accept}).headers["content-type"].startswith(kind)
        assert httpx.post(stack.url + "/metrics").status_code == 405
