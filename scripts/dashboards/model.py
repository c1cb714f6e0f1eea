"""One model, or some."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query
from scripts.dashboards.promql import (
    BY_MODEL,
    FAILED,
    FIRST,
    MODEL_CHOICE,
    OUTCOMES,
    RATE,
    WHOLE,
    quantiles,
    rate,
    share,
)

BOARD = Board(
    "model",
    "Dragoman / Model",
    "One model, or some: its requests, times, tokens, queue and workers.",
    BY_MODEL,
    (
        Panel(
            "Requests by outcome",
            f"Requests a second, by their end. {OUTCOMES}",
            "reqps",
            (Query(rate("dragoman_requests_total{*}", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Errors by status",
            "Requests a second that did not end with a 2xx, by the status that the client saw; 0: it saw none.",
            "reqps",
            (Query(rate('dragoman_requests_total{*,status!~"2.."}', "status"), "{{status}}"),),
        ),
        Panel(
            "Requests by client API and operation",
            "Requests a second.",
            "reqps",
            (Query(rate("dragoman_requests_total{*}", "dialect", "operation"), "{{dialect}} {{operation}}"),),
            stacked=True,
        ),
        Panel(
            "Share of failures",
            "Failed requests, of all that ended, by model.",
            "percentunit",
            (Query(share(FAILED, "dragoman_requests_total{*}", "model"), "{{model}}"),),
        ),
        Panel("Time to the first output", FIRST, "s", quantiles("dragoman_first_output_seconds", "model")),
        Panel("Time of a request", WHOLE, "s", quantiles("dragoman_request_seconds", "model")),
        Panel(
            "Time to the first output by client API",
            f"95th percentile. {FIRST}",
            "s",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le, dialect) "
                    f"(rate(dragoman_first_output_seconds_bucket{{*}}{RATE})))",
                    "{{dialect}}",
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Tokens a second by direction, and who counted them: the `engine`, the gateway (`counted`), or nobody "
            "(`estimated`).",
            "cps",
            (Query(rate("dragoman_tokens_total{*}", "direction", "source"), "{{direction}} {{source}}"),),
        ),
        Panel(
            "Tokens of a request",
            "Mean of the requests that ended, by direction.",
            "short",
            (
                Query(
                    f"sum by (direction) (rate(dragoman_tokens_total{{*}}{RATE})) / ignoring (direction) group_left () "
                    f"(sum(rate(dragoman_requests_total{{*}}{RATE})) > 0)",
                    "{{direction}}",
                ),
            ),
        ),
        Panel(
            "Queue",
            "Requests that wait for a worker, because all are at `max_in_flight`.",
            "short",
            (Query("sum by (model) (dragoman_queue_length{*})", "{{model}}"),),
        ),
        Panel(
            "Ready workers",
            "Workers that the gateways find ready, and all that they know.",
            "short",
            (
                Query("sum by (model) (max by (model, worker) (dragoman_worker_ready{*}))", "ready {{model}}"),
                Query("count by (model) (max by (model, worker) (dragoman_worker_ready{*}))", "known {{model}}"),
            ),
        ),
        Panel(
            "Retries and ejections",
            "A second: further tries on another worker, and times that the breaker left a worker out.",
            "ops",
            (
                Query(rate("dragoman_retries_total{*}", "model"), "retries {{model}}"),
                Query(rate("dragoman_worker_ejections_total{*}", "model"), "ejections {{model}}"),
            ),
        ),
        Panel(
            "Between two pieces of output",
            "Of streams, as the gateway passes them on. Tokens that a worker sends together are one piece.",
            "s",
            quantiles("dragoman_output_gap_seconds", "model"),
        ),
        Panel(
            "Wait in the queue",
            "Of the requests that had to wait for a worker, however the wait ended.",
            "s",
            quantiles("dragoman_queue_wait_seconds", "model"),
        ),
        Panel(
            "Time that the gateway adds",
            "A request's time less the time with its workers. Its upload and its wait in the queue are in it.",
            "s",
            quantiles("dragoman_added_seconds", "model"),
        ),
        Panel(
            "Clients that left",
            "Requests a second whose client left, by what it waited for.",
            "reqps",
            (Query(rate("dragoman_cancelled_requests_total{*}", "phase"), "{{phase}}"),),
        ),
    ),
    (MODEL_CHOICE,),
)
