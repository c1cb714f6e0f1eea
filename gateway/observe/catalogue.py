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
    QUEUE_S,
    REQUEST_S,
    counter,
    gauge,
    group,
    histogram,
)

_GEN_AI = "gen_ai_operation_name gen_ai_provider_name gen_ai_request_model"

GROUPS = (
    group(
        "Requests",
        counter("dragoman_requests_total", "dialect operation model status outcome", by="model outcome").described(
            "Requests by what became of them. An outcome is `ok`, `refused` (a 4xx), `failed` or `cancelled` (the"
            " client left)."
        ),
        counter("dragoman_model_requests_total", "model outcome").described(
            "The same by model and outcome alone. Every configured model has all four series from the start, so "
            "that its first failure is seen as an increase."
        ),
        gauge("dragoman_requests_running", "dialect", query="sum(dragoman_requests_running)").described(
            "Requests under way."
        ),
        histogram("dragoman_request_seconds", REQUEST_S, "dialect model").described(
            "From the request's head to its end."
        ),
        histogram("dragoman_added_seconds", ADDED_S, "dialect model").described(
            "Time of a request without its workers: from its head to its end, less the time from sending to a "
            "worker until that worker's reply has ended. It includes the upload of the request and its wait in the "
            "queue. Only requests that were sent to a worker count."
        ),
        counter("dragoman_cancelled_requests_total", "model phase", by="phase").described(
            "Requests whose client left, by what it waited for: `reading` (before the model was known, or before "
            "a limit had decided), `queued` (for a worker), `first_output` (a worker had the request), "
            "`streaming` (after the first output)."
        ),
        counter("dragoman_dropped_fields_total", "dialect").described(
            "Request fields that were dropped and named in `x-dragoman-dropped`."
        ),
        counter("dragoman_bugs_total", query="increase(dragoman_bugs_total[1h]) > 0").described(
            "Requests that failed by a bug of the gateway. Each has a log line `bug`."
        ),
    ),
    group(
        "Streams and tokens",
        histogram("dragoman_first_output_seconds", REQUEST_S, "dialect model").described(
            "Streams: from the request's head to the first output (TTFT)."
        ),
        histogram("dragoman_output_gap_seconds", GAP_S, "model").described(
            "Streams: between two pieces of output as the gateway passes them on (inter-token latency). Tokens "
            "that a worker sends together are one piece."
        ),
        counter("dragoman_tokens_total", "model direction source", by="model direction").described(
            "Tokens, `input` and `output`, counted by the `engine`, by the gateway (`counted`), or `estimated`."
        ),
    ),
    group(
        "Teams",
        counter("dragoman_team_requests_total", "team outcome", by="team").described(
            "Requests by team and what became of them. `none` is without a team; the first 100 teams have series,"
            " the others together are `other`."
        ),
        counter(
            "dragoman_team_tokens_total",
            "team direction",
            query="topk(5, sum by (team) (rate(dragoman_team_tokens_total[5m])))",
        ).described("Tokens by team, likewise."),
    ),
    group(
        "Queue and retries",
        gauge("dragoman_queue_length", "model").described(
            "Requests that wait for a worker: all are busy, or, with `queue.cold_start_s`, there is none yet."
        ),
        histogram("dragoman_queue_wait_seconds", QUEUE_S, "model").described(
            "How long those that had to wait for a worker did so, whatever ended the wait. A request that found a"
            " free worker at once is not in it."
        ),
        counter("dragoman_queue_refused_total", "model reason").described(
            "Requests that got no worker: the queue was `full`; they had to make room for others (`displaced`); "
            "their wait would have been too long (`slow`), or was (`late`); no worker could serve them "
            "(`no_worker`)."
        ),
        counter("dragoman_retries_total", "model").described("Further tries on another worker."),
        counter("dragoman_routed_total", "asked model why").described(
            "Requests for one model (`asked`) that another one answered: as its fallback, because it was "
            "`unavailable`, `overloaded`, or the prompt too long (`context_length`); or by its `split`."
        ),
        counter("dragoman_hedges_total", "model won").described(
            "Requests for embeddings that a second worker was asked for because the first was late (`hedge_s`), "
            "by whose answer came first."
        ),
        counter("dragoman_mirrored_requests_total", "model to result").described(
            "Copies of requests of a model that another one (`to`) got: `answered`, `failed`, `refused` (it "
            "cannot do it), `skipped` (none of its workers was free, too many copies were under way, the request "
            "was heavy, or two workers died of copies of it)."
        ),
        counter(
            "dragoman_quarantined_requests_total",
            "model",
            query="increase(dragoman_quarantined_requests_total[1h]) > 0",
        ).described(
            "Requests that are refused for `breaker.quarantine_s` from now on, because two workers died of them."
        ),
        counter(
            "dragoman_prefills_total",
            "model outcome",
            query='sum by (model) (rate(dragoman_prefills_total{outcome="failed"}[5m]))',
        ).described(
            "Prompts for a prefill worker, by outcome: `handed` to the worker that generates, `failed` (that "
            "worker computed the prompt too), `refused` as the worker that generates will refuse them."
        ),
        gauge("dragoman_retry_budget", query="min(dragoman_retry_budget) < 1", across="min").described(
            "Retries that may be made now (`retry.budget`, `retry.min_per_second`); below 1 none is made."
        ),
    ),
    group(
        "Workers",
        gauge(
            "dragoman_worker_ready",
            "model worker",
            query="max by (model) (dragoman_worker_ready) == 0",
            across="max",
        ).described("1 while the worker's health probe succeeds."),
        gauge("dragoman_worker_in_flight", "model worker").described(
            "Requests of this gateway that the worker has now."
        ),
        gauge(
            "dragoman_worker_capacity",
            "model worker",
            query="sum by (model) (dragoman_worker_in_flight) / sum by (model) (dragoman_worker_capacity)",
        ).described(
            "Most requests of this gateway that the worker gets at once: configured, or learnt. Absent: no bound "
            "is known."
        ),
        gauge(
            "dragoman_worker_breaker",
            "model worker state",
            query='count by (model) (dragoman_worker_breaker{state="open"} == 1)',
            across="max",
        ).described(
            "1 for the state of the worker's breaker and 0 for the others: `closed` (it takes requests), `open` "
            "(it is left out), `half_open` (its time is over, one request at a time tries it)."
        ),
        counter(
            "dragoman_worker_ejections_total",
            "model worker",
            query="sum by (model) (increase(dragoman_worker_ejections_total[15m]))",
        ).described("Times that the breaker left the worker out."),
        gauge("dragoman_upstream_connections", "model state").described(
            "Connections to workers that are open now, `busy` and `idle`."
        ),
        counter("dragoman_upstream_connections_opened_total", "model").described(
            "Connections to workers that were opened."
        ),
        counter(
            "dragoman_upstream_connections_reused_total",
            "model",
            query="sum by (model) (rate(dragoman_upstream_connections_reused_total[5m])) / ("
            "sum by (model) (rate(dragoman_upstream_connections_reused_total[5m])) + "
            "sum by (model) (rate(dragoman_upstream_connections_opened_total[5m])))",
        ).described("Requests that went out on a connection that was open already."),
    ),
    group(
        "Caches of engines",
        gauge(
            "dragoman_cache_connected",
            "model worker",
            query="min by (model, worker) (dragoman_cache_connected) == 0",
            across="min",
        ).described("1 while the gateway is connected to where the worker's engine publishes its events."),
        gauge(
            "dragoman_cache_known",
            "model worker state",
            query="sum by (model, state) (dragoman_cache_known)",
            across="max",
        ).described(
            "1 for what is known of the worker's cache and 0 for the others: the `whole` of it, a `part` (events "
            "are missing), nothing that counts (`silent`)."
        ),
        counter(
            "dragoman_cache_batches_total",
            "model worker result",
            query='sum by (model, worker) (increase(dragoman_cache_batches_total{result!="read"}[15m])) > 0',
        ).described(
            "Batches of events: `read`, `lost` (missed, and the engine no longer has them), `unreadable` (nothing"
            " is known then but what comes next)."
        ),
        gauge(
            "dragoman_cache_blocks",
            "model worker",
            query="max by (model, worker) (dragoman_cache_blocks)",
            across="max",
        ).described("Blocks that the worker's engine is known to have; 131,072 are held at most."),
        gauge("dragoman_cache_bytes", "model worker", query="sum by (instance) (dragoman_cache_bytes)").described(
            "Memory of the gateway that they take."
        ),
        counter(
            "dragoman_cache_picks_total",
            "model by",
            query='sum by (model) (rate(dragoman_cache_picks_total{by="engine"}[5m]))'
            " / sum by (model) (rate(dragoman_cache_picks_total[5m]))",
        ).described(
            "Picks among workers by what decided: what an `engine` reported of its cache, what a worker was `sent`, "
            "or `none` of both: a session, a place, the load."
        ),
        text="Only models with [`kv_events`](routing.md#what-engines-have-cached).",
    ),
    group(
        "Limits and accounting",
        counter("dragoman_limit_decisions_total", "limit mode decision", by="limit decision").described(
            "Decisions of each limit: `admitted`, `refused`, or `shadowed` (a shadow limit would have refused). "
            "The mode is `strict` (the limits' store decided), `local` (this process alone) or `closed` (refused "
            "because the store is down and the limit says so). A limit that is open meanwhile decides nothing. If"
            " one limit refuses a request, the others decide nothing."
        ),
        counter("dragoman_limits_refused_total", "limit").described("Requests refused by a limit."),
        counter("dragoman_limits_shadowed_total", "limit").described(
            "Requests that a shadow limit would have refused."
        ),
        gauge("dragoman_limits_strict", query="min(dragoman_limits_strict) == 0", across="min").described(
            "1 while the limits' store decides, 0 while this gateway decides alone."
        ),
        counter("dragoman_limits_alone_total", query="sum(rate(dragoman_limits_alone_total[5m]))").described(
            "Requests that this gateway decided alone, because Redis was down or too slow."
        ),
        gauge("dragoman_limits_replicas", query="min(dragoman_limits_replicas)", across="max").described(
            "Gateways on the same counters, as last known."
        ),
        gauge("dragoman_limits_in_flight").described("Requests here that hold slots of a limit."),
        counter(
            "dragoman_accounting_records_total",
            "result",
            query='increase(dragoman_accounting_records_total{result="lost"}[1h]) > 0',
        ).described("Usage records, `written` and `lost`."),
        text="Absent without limits, and without accounting.",
    ),
    group(
        "The process",
        gauge("dragoman_connections").described("Client connections that are open now, idle ones included."),
        counter("dragoman_refused_connections_total", "status").described(
            "Ended by the server itself, before a dialect saw a whole request: 400, 408, 431, 503."
        ),
        histogram("dragoman_loop_lag_seconds", LAG_S, by="instance", share=0.99).described(
            "How late the event loop came to a timer, ten times a second: what waits for the loop waits in every "
            "stream."
        ),
        counter("dragoman_shed_requests_total", "reason").described(
            "Requests that were refused to protect this process: the event loop was late (`lag`); their key had "
            "too many `streams` or `connections` open."
        ),
        counter("dragoman_log_lines_lost_total", query="increase(dragoman_log_lines_lost_total[1h]) > 0").described(
            "Lines of the log that were dropped because standard output took none for too long."
        ),
        gauge("dragoman_draining", across="max").described("1 while shutting down."),
        counter(
            "dragoman_reloads_total", "result", query='increase(dragoman_reloads_total{result="refused"}[1h]) > 0'
        ).described("Reloads of the configuration, `done` and `refused`."),
        gauge(
            "dragoman_build_info", "version python", query="count by (version) (dragoman_build_info)", across="max"
        ).described("Always 1: which version runs, and on which Python."),
    ),
    group(
        "OpenTelemetry's names",
        histogram(
            "gen_ai_server_request_duration_seconds",
            GENAI_REQUEST_S,
            _GEN_AI + " error_type",
            by="gen_ai_request_model",
        ).described("From the request's head to its end."),
        histogram(
            "gen_ai_server_time_to_first_token_seconds", GENAI_FIRST_S, _GEN_AI, by="gen_ai_request_model"
        ).described("Streams: from the request's head to the first output."),
        histogram(
            "gen_ai_server_time_per_output_token_seconds",
            GENAI_GAP_S,
            _GEN_AI,
            by="gen_ai_request_model",
            share=0.5,
        ).described("Streams that are whole: from the first output to the end, for each token behind the first."),
        histogram(
            "gen_ai_client_token_usage",
            GENAI_TOKENS,
            _GEN_AI + " gen_ai_token_type",
            query="sum by (gen_ai_request_model, gen_ai_token_type) (rate(gen_ai_client_token_usage_sum[5m]))",
        ).described("Tokens of a request, `input` and `output`."),
        text="With `metrics.genai: true`, for dashboards made for the [semantic "
        "conventions](https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/): their metrics, "
        "attributes and buckets, spelt as Prometheus spells them. `gen_ai_provider_name` is `dragoman`; an "
        "operation is `chat`, `text_completion` or `embeddings`, or the name of another route; `error_type` is "
        "the status of what is not `ok` (the outcome if there was none), else empty. Only requests whose model is"
        " known.",
    ),
)

FIGURES = {figure.name: figure for group in GROUPS for figure in group.figures}
