"""Every metric that `/metrics` shows: its type, labels, meaning and a typical query. docs/metrics.md is made from it.

Collectors take their families from here, so that no metric is shown that is not described. Names are those of the
exposition: a counter's ends in `_total`.
"""

from __future__ import annotations

from gateway.observe.figure import (
    ADDED_S,
    GAP_S,
    GENAI_FIRST_S,
    GENAI_GAP_S,
    GENAI_REQUEST_S,
    GENAI_TOKENS,
    LAG_S,
    P95,
    QUEUE_S,
    REQUEST_S,
    Figure,
    Group,
    rate,
)

GROUPS = (
    Group(
        "Requests",
        (
            Figure(
                "dragoman_requests_total",
                "counter",
                ("dialect", "operation", "model", "status", "outcome"),
                "Requests by what became of them. An outcome is `ok`, `refused` (a 4xx), `failed` or `cancelled` "
                "(the client left).",
                rate("dragoman_requests_total", "model", "outcome"),
            ),
            Figure(
                "dragoman_model_requests_total",
                "counter",
                ("model", "outcome"),
                "The same by model and outcome alone. Every configured model has all four series from the start, so "
                "that its first failure is seen as an increase.",
                rate("dragoman_model_requests_total", "model", "outcome"),
            ),
            Figure(
                "dragoman_requests_running",
                "gauge",
                ("dialect",),
                "Requests under way.",
                "sum(dragoman_requests_running)",
            ),
            Figure(
                "dragoman_request_seconds",
                "histogram",
                ("dialect", "model"),
                "From the request's head to its end.",
                P95.format("dragoman_request_seconds"),
                REQUEST_S,
            ),
            Figure(
                "dragoman_added_seconds",
                "histogram",
                ("dialect", "model"),
                "What a request took beside the time with its workers: from its head to its end, less the time from "
                "sending to a worker until that one's reply has ended. The upload of the request and its wait in the "
                "queue are in it. Only requests that were sent to a worker.",
                P95.format("dragoman_added_seconds"),
                ADDED_S,
            ),
            Figure(
                "dragoman_cancelled_requests_total",
                "counter",
                ("model", "phase"),
                "Requests whose client left, by what it waited for: `reading` (before the model was known, or before a "
                "limit had decided), `queued` (for a worker), `first_output` (a worker had the request), `streaming` "
                "(after the first output).",
                rate("dragoman_cancelled_requests_total", "phase"),
            ),
            Figure(
                "dragoman_dropped_fields_total",
                "counter",
                ("dialect",),
                "Request fields that were dropped and named in `x-dragoman-dropped`.",
                rate("dragoman_dropped_fields_total", "dialect"),
            ),
            Figure(
                "dragoman_bugs_total",
                "counter",
                (),
                "Requests that failed by a bug of the gateway. Each has a log line `bug`.",
                "increase(dragoman_bugs_total[1h]) > 0",
            ),
        ),
    ),
    Group(
        "Streams and tokens",
        (
            Figure(
                "dragoman_first_output_seconds",
                "histogram",
                ("dialect", "model"),
                "Streams: from the request's head to the first output (TTFT).",
                P95.format("dragoman_first_output_seconds"),
                REQUEST_S,
            ),
            Figure(
                "dragoman_output_gap_seconds",
                "histogram",
                ("model",),
                "Streams: between two pieces of output as the gateway passes them on (inter-token latency). Tokens "
                "that a worker sends together are one piece.",
                P95.format("dragoman_output_gap_seconds"),
                GAP_S,
            ),
            Figure(
                "dragoman_tokens_total",
                "counter",
                ("model", "direction", "source"),
                "Tokens, `input` and `output`, counted by the `engine`, by the gateway (`counted`), or `estimated`.",
                rate("dragoman_tokens_total", "model", "direction"),
            ),
        ),
    ),
    Group(
        "Teams",
        (
            Figure(
                "dragoman_team_requests_total",
                "counter",
                ("team", "outcome"),
                "Requests by team and what became of them. `none` is without a team; the first 100 teams have series, "
                "the others together are `other`.",
                rate("dragoman_team_requests_total", "team"),
            ),
            Figure(
                "dragoman_team_tokens_total",
                "counter",
                ("team", "direction"),
                "Tokens by team, likewise.",
                "topk(5, " + rate("dragoman_team_tokens_total", "team") + ")",
            ),
        ),
    ),
    Group(
        "Queue and retries",
        (
            Figure(
                "dragoman_queue_length",
                "gauge",
                ("model",),
                "Requests that wait for a worker: all are busy, or, with `queue.cold_start_s`, there is none yet.",
                "sum by (model) (dragoman_queue_length)",
            ),
            Figure(
                "dragoman_queue_wait_seconds",
                "histogram",
                ("model",),
                "How long those that had to wait for a worker did so, whatever ended the wait. A request that found a "
                "free worker at once is not in it.",
                P95.format("dragoman_queue_wait_seconds"),
                QUEUE_S,
            ),
            Figure(
                "dragoman_queue_refused_total",
                "counter",
                ("model", "reason"),
                "Requests that got no worker: the queue was `full`; they had to make room for others (`displaced`); "
                "their wait would have been too long (`slow`), or was (`late`); no worker could serve them "
                "(`no_worker`).",
                rate("dragoman_queue_refused_total", "model", "reason"),
            ),
            Figure(
                "dragoman_retries_total",
                "counter",
                ("model",),
                "Further tries on another worker.",
                rate("dragoman_retries_total", "model"),
            ),
            Figure(
                "dragoman_detours_total",
                "counter",
                ("asked", "model", "why"),
                "Requests for one model (`asked`) that another one answered: as its fallback, because it was "
                "`unavailable`, `overloaded`, or the prompt too long (`context_length`); or by its `split`.",
                rate("dragoman_detours_total", "asked", "model", "why"),
            ),
            Figure(
                "dragoman_hedges_total",
                "counter",
                ("model", "won"),
                "Requests for embeddings that a second worker was asked for because the first was late (`hedge_s`), by "
                "whose answer came first.",
                rate("dragoman_hedges_total", "model", "won"),
            ),
            Figure(
                "dragoman_mirrored_requests_total",
                "counter",
                ("model", "to", "result"),
                "Copies of requests of a model that another one (`to`) got: `answered`, `failed`, `refused` (it cannot "
                "do it), `skipped` (none of its workers was free, too many copies were under way, the request was "
                "heavy, or two workers died of copies of it).",
                rate("dragoman_mirrored_requests_total", "model", "to", "result"),
            ),
            Figure(
                "dragoman_quarantined_requests_total",
                "counter",
                ("model",),
                "Requests that are refused for `breaker.quarantine_s` from now on, because two workers died of them.",
                "increase(dragoman_quarantined_requests_total[1h]) > 0",
            ),
            Figure(
                "dragoman_prefills_total",
                "counter",
                ("model", "outcome"),
                "Prompts for a prefill worker, by outcome: `handed` to the worker that generates, `failed` (that worker"
                " computed the prompt too), `refused` as the worker that generates will refuse them.",
                'sum by (model) (rate(dragoman_prefills_total{outcome="failed"}[5m]))',
            ),
            Figure(
                "dragoman_retry_budget",
                "gauge",
                (),
                "Retries that may be made now (`retry.budget`, `retry.min_per_second`); below 1 none is made.",
                "min(dragoman_retry_budget) < 1",
                across="min",
            ),
        ),
    ),
    Group(
        "Workers",
        (
            Figure(
                "dragoman_worker_ready",
                "gauge",
                ("model", "worker"),
                "1 while the worker's health probe succeeds.",
                "max by (model) (dragoman_worker_ready) == 0",
                across="max",
            ),
            Figure(
                "dragoman_worker_in_flight",
                "gauge",
                ("model", "worker"),
                "Requests of this gateway that the worker has now.",
                "sum by (model, worker) (dragoman_worker_in_flight)",
            ),
            Figure(
                "dragoman_worker_capacity",
                "gauge",
                ("model", "worker"),
                "Most requests of this gateway that the worker gets at once: configured, or learnt. Absent: no bound "
                "is known.",
                "sum by (model) (dragoman_worker_in_flight) / sum by (model) (dragoman_worker_capacity)",
            ),
            Figure(
                "dragoman_worker_breaker",
                "gauge",
                ("model", "worker", "state"),
                "1 for the state of the worker's breaker and 0 for the others: `closed` (it takes requests), `open` "
                "(it is left out), `half_open` (its time is over, one request at a time tries it).",
                'count by (model) (dragoman_worker_breaker{state="open"} == 1)',
                across="max",
            ),
            Figure(
                "dragoman_worker_ejections_total",
                "counter",
                ("model", "worker"),
                "Times that the breaker left the worker out.",
                "sum by (model) (increase(dragoman_worker_ejections_total[15m]))",
            ),
            Figure(
                "dragoman_upstream_connections",
                "gauge",
                ("model", "state"),
                "Connections to workers that are open now, `busy` and `idle`.",
                "sum by (model, state) (dragoman_upstream_connections)",
            ),
            Figure(
                "dragoman_upstream_connections_opened_total",
                "counter",
                ("model",),
                "Connections to workers that were opened.",
                rate("dragoman_upstream_connections_opened_total", "model"),
            ),
            Figure(
                "dragoman_upstream_connections_reused_total",
                "counter",
                ("model",),
                "Requests that went out on a connection that was open already.",
                rate("dragoman_upstream_connections_reused_total", "model")
                + " / ("
                + rate("dragoman_upstream_connections_reused_total", "model")
                + " + "
                + rate("dragoman_upstream_connections_opened_total", "model")
                + ")",
            ),
        ),
    ),
    Group(
        "What engines have cached",
        (
            Figure(
                "dragoman_cache_connected",
                "gauge",
                ("model", "worker"),
                "1 while the gateway is connected to where the worker's engine publishes its events.",
                "min by (model, worker) (dragoman_cache_connected) == 0",
                across="min",
            ),
            Figure(
                "dragoman_cache_known",
                "gauge",
                ("model", "worker", "state"),
                "1 for what is known of the worker's cache and 0 for the others: the `whole` of it, a `part` (events "
                "are missing), nothing that counts (`silent`).",
                "sum by (model, state) (dragoman_cache_known)",
                across="max",
            ),
            Figure(
                "dragoman_cache_batches_total",
                "counter",
                ("model", "worker", "result"),
                "Batches of events: `read`, `lost` (missed, and the engine no longer has them), `unreadable` (nothing "
                "is known then but what comes next).",
                'sum by (model, worker) (increase(dragoman_cache_batches_total{result!="read"}[15m])) > 0',
            ),
            Figure(
                "dragoman_cache_blocks",
                "gauge",
                ("model", "worker"),
                "Blocks that the worker's engine is known to have; 131,072 are held at most.",
                "max by (model, worker) (dragoman_cache_blocks)",
                across="max",
            ),
            Figure(
                "dragoman_cache_bytes",
                "gauge",
                ("model", "worker"),
                "Memory of the gateway that they take.",
                "sum by (instance) (dragoman_cache_bytes)",
            ),
            Figure(
                "dragoman_cache_picks_total",
                "counter",
                ("model", "by"),
                "Picks among workers by what decided: what an `engine` told of its cache, what a worker was `sent`, or "
                "`none` of both: a session, a place, the load.",
                'sum by (model) (rate(dragoman_cache_picks_total{by="engine"}[5m]))'
                " / sum by (model) (rate(dragoman_cache_picks_total[5m]))",
            ),
        ),
        "Of models with [`kv_events`](routing.md#what-engines-have-cached).",
    ),
    Group(
        "Limits and accounting",
        (
            Figure(
                "dragoman_limit_decisions_total",
                "counter",
                ("limit", "mode", "decision"),
                "What each limit decided: `admitted`, `refused`, or `shadowed` (a shadow limit would have refused). "
                "The mode is `strict` (the limits' store decided), `local` (this process alone) or `closed` (refused "
                "because the store is down and the limit says so). A limit that is open meanwhile decides nothing. "
                "Of a request that one limit refuses, the others decide nothing.",
                rate("dragoman_limit_decisions_total", "limit", "decision"),
            ),
            Figure(
                "dragoman_limits_refused_total",
                "counter",
                ("limit",),
                "Requests refused by a limit.",
                rate("dragoman_limits_refused_total", "limit"),
            ),
            Figure(
                "dragoman_limits_shadowed_total",
                "counter",
                ("limit",),
                "Requests that a shadow limit would have refused.",
                rate("dragoman_limits_shadowed_total", "limit"),
            ),
            Figure(
                "dragoman_limits_strict",
                "gauge",
                (),
                "1 while the limits' store decides, 0 while this gateway decides alone.",
                "min(dragoman_limits_strict) == 0",
                across="min",
            ),
            Figure(
                "dragoman_limits_alone_total",
                "counter",
                (),
                "Requests that this gateway decided alone, because Redis was down or too slow.",
                "sum(rate(dragoman_limits_alone_total[5m]))",
            ),
            Figure(
                "dragoman_limits_replicas",
                "gauge",
                (),
                "Gateways on the same counters, as last known.",
                "min(dragoman_limits_replicas)",
                across="max",
            ),
            Figure(
                "dragoman_limits_in_flight",
                "gauge",
                (),
                "Requests here that hold slots of a limit.",
                "sum(dragoman_limits_in_flight)",
            ),
            Figure(
                "dragoman_accounting_records_total",
                "counter",
                ("result",),
                "Usage records, `written` and `lost`.",
                'increase(dragoman_accounting_records_total{result="lost"}[1h]) > 0',
            ),
        ),
        "Absent without limits, and without accounting.",
    ),
    Group(
        "The process",
        (
            Figure(
                "dragoman_connections",
                "gauge",
                (),
                "Client connections that are open now, idle ones included.",
                "sum(dragoman_connections)",
            ),
            Figure(
                "dragoman_refused_connections_total",
                "counter",
                ("status",),
                "Ended by the server itself, before a dialect saw a whole request: 400, 408, 431, 503.",
                rate("dragoman_refused_connections_total", "status"),
            ),
            Figure(
                "dragoman_loop_lag_seconds",
                "histogram",
                (),
                "How late the event loop came to a timer, ten times a second: what waits for the loop waits in every "
                "stream.",
                "histogram_quantile(0.99, sum by (le, instance) (rate(dragoman_loop_lag_seconds_bucket[5m])))",
                LAG_S,
            ),
            Figure(
                "dragoman_shed_requests_total",
                "counter",
                ("reason",),
                "Requests that were refused to protect this process: the event loop was late (`lag`); their key had "
                "too many `streams` or `connections` open.",
                rate("dragoman_shed_requests_total", "reason"),
            ),
            Figure(
                "dragoman_log_lines_lost_total",
                "counter",
                (),
                "Lines of the log that were dropped because standard output took none for too long.",
                "increase(dragoman_log_lines_lost_total[1h]) > 0",
            ),
            Figure("dragoman_draining", "gauge", (), "1 while shutting down.", "sum(dragoman_draining)", across="max"),
            Figure(
                "dragoman_reloads_total",
                "counter",
                ("result",),
                "Reloads of the configuration, `done` and `refused`.",
                'increase(dragoman_reloads_total{result="refused"}[1h]) > 0',
            ),
            Figure(
                "dragoman_build_info",
                "gauge",
                ("version", "python"),
                "Always 1: which version runs, and on which Python.",
                "count by (version) (dragoman_build_info)",
                across="max",
            ),
        ),
    ),
    Group(
        "OpenTelemetry's names",
        (
            Figure(
                "gen_ai_server_request_duration_seconds",
                "histogram",
                ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"),
                "From the request's head to its end.",
                "histogram_quantile(0.95, sum by (le, gen_ai_request_model) "
                "(rate(gen_ai_server_request_duration_seconds_bucket[5m])))",
                GENAI_REQUEST_S,
            ),
            Figure(
                "gen_ai_server_time_to_first_token_seconds",
                "histogram",
                ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"),
                "Streams: from the request's head to the first output.",
                "histogram_quantile(0.95, sum by (le, gen_ai_request_model) "
                "(rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))",
                GENAI_FIRST_S,
            ),
            Figure(
                "gen_ai_server_time_per_output_token_seconds",
                "histogram",
                ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"),
                "Streams that are whole: from the first output to the end, for each token behind the first.",
                "histogram_quantile(0.5, sum by (le, gen_ai_request_model) "
                "(rate(gen_ai_server_time_per_output_token_seconds_bucket[5m])))",
                GENAI_GAP_S,
            ),
            Figure(
                "gen_ai_client_token_usage",
                "histogram",
                ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"),
                "Tokens of a request, `input` and `output`.",
                "sum by (gen_ai_request_model, gen_ai_token_type) (rate(gen_ai_client_token_usage_sum[5m]))",
                GENAI_TOKENS,
            ),
        ),
        "With `metrics.genai: true`, for dashboards made for the "
        "[semantic conventions](https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/): their metrics, "
        "attributes and buckets, spelt as Prometheus spells them. `gen_ai_provider_name` is `dragoman`; an operation "
        "is `chat`, `text_completion` or `embeddings`, or the name of another route; `error_type` is the status of "
        "what is not `ok` (the outcome if there was none), else empty. Only requests whose model is known.",
    ),
)

FIGURES = {figure.name: figure for group in GROUPS for figure in group.figures}
