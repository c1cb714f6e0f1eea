"""All gateways: requests, their outcomes and their times."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query
from scripts.dashboards.panels import (
    CLIENTS_THAT_LEFT,
    QUEUE,
    REQUESTS_BY_OUTCOME,
    share_of_failures,
    time_added,
    times,
)
from scripts.dashboards.promql import BY_NAMESPACE, FAILED, RATE, quantiles, rate, share

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
            (Query(share(FAILED, "dragoman_model_requests_total{*}"), "failed"),),
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
        REQUESTS_BY_OUTCOME,
        share_of_failures("Share of failures by model"),
        *times(),
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
        QUEUE,
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
            "Other models, second workers",
            "A second: requests that another model answered than the one they named; copies for another one; requests "
            "for embeddings that a second worker was asked for; requests that are held, as two workers died of them; "
            "searches and pages of the web.",
            "ops",
            (
                Query(f"{rate('dragoman_routed_total{*}')} or vector(0)", "other models"),
                Query(f"{rate('dragoman_mirrored_requests_total{*}')} or vector(0)", "copies"),
                Query(f"{rate('dragoman_hedges_total{*}')} or vector(0)", "second workers"),
                Query(f"{rate('dragoman_quarantined_requests_total{*}')} or vector(0)", "held"),
                Query(f"{rate('dragoman_tool_calls_total{*}')} or vector(0)", "searches, pages"),
            ),
        ),
        Panel(
            "Cache of replies",
            "A second, by what came of it: `hit` or `miss`. And a second: tokens that no worker computed, troubles "
            "with Redis.",
            "ops",
            (
                Query(rate("dragoman_reply_cache_requests_total{*}", "result"), "{{result}}"),
                Query(rate("dragoman_reply_cache_saved_tokens_total{*}", "kind"), "{{kind}} tokens saved"),
                Query(rate("dragoman_reply_cache_errors_total{*}", "call"), "trouble: {{call}}"),
            ),
        ),
        Panel(
            "Logged prompts",
            "A second, by what came of those that `prompt_log` was to log: `written`, `dropped` (too many wait), "
            "or `failed` (a folder, a bucket or a collector did not take them).",
            "ops",
            (Query(rate("dragoman_logged_prompts_total{*}", "result"), "{{result}}"),),
            stacked=True,
        ),
        Panel(
            "Answers of guards",
            "A second, by guard and answer: `allowed`, `refused`, `replaced`, or `failed` (no right answer in time).",
            "ops",
            (Query(rate("dragoman_guard_checks_total{*}", "guard", "result"), "{{guard}} {{result}}"),),
            stacked=True,
        ),
        Panel(
            "Time of guards",
            "Until a guard had answered, by guard.",
            "s",
            quantiles("dragoman_guard_seconds", "guard"),
        ),
        Panel(
            "Requests of batches",
            "A second, by what became of them: those with a result; those that gave their places to clients, found no "
            "room or lost their gateway, and come again; those that were never answered. And batches under way.",
            "ops",
            (
                Query(rate("dragoman_batch_lines_total{*}", "result"), "{{result}}"),
                Query("sum(dragoman_batches_running{*})", "batches under way"),
            ),
        ),
        Panel(
            "Refused connections",
            "Connections a second that the server ended itself, before a dialect saw a whole request, by status: a 503 "
            "means that the gateway was full. And requests refused because the event loop was late, or their key had "
            "too much open.",
            "cps",
            (
                Query(rate("dragoman_refused_connections_total{*}", "status"), "{{status}}"),
                Query(rate("dragoman_shed_requests_total{*}", "reason"), "{{reason}}"),
            ),
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
        time_added(),
        CLIENTS_THAT_LEFT,
        Panel(
            "Client connections",
            "Connections that are open now, idle ones included, by gateway, and how many of all are web sockets.",
            "short",
            (
                Query("sum by (instance) (dragoman_connections{*})", "{{instance}}"),
                Query("sum(dragoman_sockets{*})", "web sockets"),
            ),
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
            "Log lines lost",
            "In the time that is shown, by gateway: standard output took none for too long.",
            "short",
            (Query("sum by (instance) (increase(dragoman_log_lines_lost_total{*}[$__range]))", "{{instance}}"),),
            "bargauge",
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
