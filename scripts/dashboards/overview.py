"""All gateways: what is asked, how it ends, how long it takes."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query
from scripts.dashboards.promql import BY_NAMESPACE, FAILED, FIRST, OUTCOMES, RATE, WHOLE, quantiles, rate, share

BOARD = Board(
    "overview",
    "Dragoman / Overview",
    "All gateways: what is asked, how it ends, how long it takes.",
    BY_NAMESPACE,
    (
        Panel(
            "Gateways",
            "Gateways that Prometheus reads, without those that are shutting down.",
            "short",
            (Query("count(dragoman_draining{*} == 0)", "gateways"),),
            "stat",
            4,
            alarm_below=1,
        ),
        Panel(
            "Requests",
            "Requests a second, by their end.",
            "reqps",
            (Query(rate("dragoman_requests_total{*}"), "requests"),),
            "stat",
            4,
        ),
        Panel(
            "Failed",
            "Failed requests, of all that ended. Refused and cancelled ones are no failures.",
            "percentunit",
            (Query(share(FAILED, "dragoman_requests_total{*}"), "failed"),),
            "stat",
            4,
            alarm=0.01,
        ),
        Panel(
            "Under way",
            "Requests under way now.",
            "short",
            (Query("sum(dragoman_requests_running{*})", "requests"),),
            "stat",
            4,
        ),
        Panel(
            "Models without a worker",
            "Models of which no gateway has a ready worker.",
            "short",
            (
                Query(
                    "count(max by (namespace, model) (dragoman_worker_ready{*}) == 0) or vector(0)",
                    "models",
                ),
            ),
            "stat",
            4,
            alarm=1,
        ),
        Panel(
            "Bugs",
            "Requests that failed by a bug of the gateway, in the time that is shown. Each has a log line `bug`.",
            "short",
            (Query("sum(increase(dragoman_bugs_total{*}[$__range]))", "bugs"),),
            "stat",
            4,
            alarm=1,
        ),
        Panel(
            "Requests by outcome",
            f"Requests a second, by their end. {OUTCOMES}",
            "reqps",
            (Query(rate("dragoman_requests_total{*}", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Share of failures by model",
            "Failed requests of a model, of all of its requests that ended.",
            "percentunit",
            (Query(share(FAILED, "dragoman_requests_total{*}", "model"), "{{model}}"),),
        ),
        Panel("Time to the first output", FIRST, "s", quantiles("dragoman_first_output_seconds")),
        Panel("Time of a request", WHOLE, "s", quantiles("dragoman_request_seconds")),
        Panel(
            "Requests by client API",
            "Requests a second, by dialect.",
            "reqps",
            (Query(rate("dragoman_requests_total{*}", "dialect"), "{{dialect}}"),),
            stacked=True,
        ),
        Panel(
            "Requests under way",
            "By dialect. Waiting requests are in it.",
            "short",
            (Query("sum by (dialect) (dragoman_requests_running{*})", "{{dialect}}"),),
            stacked=True,
        ),
        Panel(
            "Tokens",
            "Tokens a second by direction: read (`input`) and made (`output`).",
            "cps",
            (Query(rate("dragoman_tokens_total{*}", "direction"), "{{direction}}"),),
        ),
        Panel(
            "Queue",
            "Requests that wait for a worker, because all of the model's are at `max_in_flight`.",
            "short",
            (Query("sum by (model) (dragoman_queue_length{*})", "{{model}}"),),
        ),
        Panel(
            "Ready workers",
            "Workers that the gateways find ready, by model.",
            "short",
            (Query("sum by (model) (max by (model, worker) (dragoman_worker_ready{*}))", "{{model}}"),),
        ),
        Panel(
            "Retries",
            "Further tries on another worker a second, by model.",
            "ops",
            (Query(rate("dragoman_retries_total{*}", "model"), "{{model}}"),),
        ),
        Panel(
            "Refused connections",
            "Connections a second that the server ended itself, before a dialect saw a whole request, by status. A 503 "
            "means that the gateway was full.",
            "cps",
            (Query(rate("dragoman_refused_connections_total{*}", "status"), "{{status}}"),),
        ),
        Panel(
            "Dropped fields",
            "Fields of requests a second that no worker could be sent. Their names are in `x-dragoman-dropped`.",
            "cps",
            (Query(rate("dragoman_dropped_fields_total{*}", "dialect"), "{{dialect}}"),),
        ),
        Panel(
            "Reloads of the configuration",
            "In the time that is shown, by result. After a refused one the old configuration stays.",
            "short",
            (Query("sum by (result) (increase(dragoman_reloads_total{*}[$__range]))", "{{result}}"),),
            "bargauge",
        ),
        Panel(
            "Time that the gateway adds",
            "A request's time less the time with its workers. Its upload and its wait in the queue are in it.",
            "s",
            quantiles("dragoman_added_seconds"),
        ),
        Panel(
            "Clients that left",
            "Requests a second whose client left, by what it waited for: `reading` (its own request), `queued`, "
            "`first_output`, or `streaming` (more of a stream).",
            "reqps",
            (Query(rate("dragoman_cancelled_requests_total{*}", "phase"), "{{phase}}"),),
        ),
        Panel(
            "Client connections",
            "Connections that are open now, idle ones included, by gateway.",
            "short",
            (Query("sum by (instance) (dragoman_connections{*})", "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Lateness of the event loop",
            "99th percentile, by gateway: how late timers are. Streams wait as long. Above 0.1 s the core is full.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) "
                    f"(rate(dragoman_loop_lag_seconds_bucket{{*}}{RATE})))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Retries left",
            "Retries that may be made now, by gateway. Below 1 none is made.",
            "short",
            (Query("min by (instance) (dragoman_retry_budget{*})", "{{instance}}"),),
        ),
        Panel(
            "Versions",
            "Gateways by version.",
            "short",
            (Query("count by (version) (dragoman_build_info{*})", "{{version}}"),),
            "bargauge",
        ),
    ),
)
