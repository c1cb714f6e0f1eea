"""Panels that the dashboards of all gateways and of a model share."""

from __future__ import annotations

from scripts.dashboards.grafana import Panel, Query
from scripts.dashboards.promql import FAILED, OUTCOMES, quantiles, rate, share

FIRST = "From the request's head to the first output of a stream, as the client sees it."
"""What the time to first token is."""

REQUESTS_BY_OUTCOME = Panel(
    "Requests by outcome",
    f"Requests a second, by their end. {OUTCOMES}",
    "reqps",
    (Query(rate("dragoman_model_requests_total{*}", "outcome"), "{{outcome}}"),),
    stacked=True,
)
QUEUE = Panel(
    "Queue",
    "Requests that wait for a worker, because all of the model's are at `max_in_flight`.",
    "short",
    (Query("sum by (model) (dragoman_queue_length{*})", "{{model}}"),),
)
CLIENTS_THAT_LEFT = Panel(
    "Clients that left",
    "Requests a second whose client left, by what it waited for: `reading` (its own request), `queued`, "
    "`first_output`, or `streaming` (more of a stream).",
    "reqps",
    (Query(rate("dragoman_cancelled_requests_total{*}", "phase"), "{{phase}}"),),
)


def share_of_failures(title: str) -> Panel:
    """The share of failed requests, by model."""
    return Panel(
        title,
        "Failed requests of a model, of all of its requests that ended.",
        "percentunit",
        (Query(share(FAILED, "dragoman_model_requests_total{*}", "model"), "{{model}}"),),
    )


def times(by: str = "") -> tuple[Panel, Panel]:
    """The times to first token and the durations of requests, over all series or by a label."""
    return (
        Panel("Time to first token", FIRST, "s", quantiles("dragoman_time_to_first_token_seconds", by)),
        Panel(
            "Request duration",
            "From the request's head to the end of its reply.",
            "s",
            quantiles("dragoman_request_duration_seconds", by),
        ),
    )


def time_added(by: str = "") -> Panel:
    """The time that the gateway itself takes, over all series or by a label."""
    return Panel(
        "Time that the gateway adds",
        "A request's time less the time with its workers. Its upload and its wait in the queue are in it.",
        "s",
        quantiles("dragoman_added_seconds", by),
    )
