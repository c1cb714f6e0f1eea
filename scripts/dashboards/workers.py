"""The workers as gateways see them, and vLLM's own figures."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query
from scripts.dashboards.promql import BY_NAMESPACE, MODEL_CHOICE, RATE, quantiles, rate, share

_VLLM = "As the worker counts it."
# vLLM's label is the name that it serves. The chart's workers serve a model under its name in the gateway.
_OF_MODEL = '{*,model_name=~"$model"}'

BOARD = Board(
    "workers",
    "Dragoman / Workers",
    "The workers as the gateways see them, and vLLM's own figures.",
    BY_NAMESPACE,
    (
        Panel(
            "Ready",
            "By model and worker: on while the health probes of at least one gateway succeed.",
            "bool_on_off",
            (
                Query(
                    'max by (model, worker) (dragoman_worker_ready{*,model=~"$model"})',
                    "{{model}} {{worker}}",
                ),
            ),
            "state-timeline",
            24,
            alarm_below=1,
        ),
        Panel(
            "Ejections",
            "Times that the breaker left a worker out, and that a worker was found stalled, in the time that is shown.",
            "short",
            (
                Query(
                    'sum by (model, worker) (increase(dragoman_worker_ejections_total{*,model=~"$model"}[$__range]))',
                    "{{model}} {{worker}}",
                ),
                Query(
                    'sum by (model, worker) (increase(dragoman_worker_stalls_total{*,model=~"$model"}[$__range]))',
                    "{{model}} {{worker}} stalled",
                ),
            ),
            "bargauge",
        ),
        Panel(
            "Retries",
            "Further tries on another worker a second, by model.",
            "ops",
            (Query(rate('dragoman_retries_total{*,model=~"$model"}', "model"), "{{model}}"),),
        ),
        Panel(
            "Requests on workers",
            "Requests that the gateways have on each worker now.",
            "short",
            (Query('sum by (worker) (dragoman_worker_in_flight{*,model=~"$model"})', "{{worker}}"),),
            stacked=True,
        ),
        Panel(
            "Capacity of workers",
            "Most requests of all gateways that a worker gets at once, configured or learnt.",
            "short",
            (Query('sum by (worker) (dragoman_worker_capacity{*,model=~"$model"})', "{{worker}}"),),
        ),
        Panel(
            "Left out by the breaker",
            "Gateways whose breaker leaves the worker out now, and gateways that have found it stalled.",
            "short",
            (
                Query('sum by (worker) (dragoman_worker_breaker{*,model=~"$model",state="open"})', "{{worker}}"),
                Query('sum by (worker) (dragoman_worker_stalled{*,model=~"$model"})', "{{worker}} stalled"),
            ),
        ),
        Panel(
            "Workers in trouble",
            "Gateways that find the worker not ready, or saw it fail last, by reason; nothing once it serves.",
            "short",
            (Query('sum by (worker, reason) (dragoman_worker_trouble{*,model=~"$model"})', "{{reason}} {{worker}}"),),
            stacked=True,
        ),
        Panel(
            "Connections to workers",
            "Connections that are open now, by model: `busy` with a request, or `idle`.",
            "short",
            (Query('sum by (model, state) (dragoman_upstream_connections{*,model=~"$model"})', "{{model}} {{state}}"),),
        ),
        Panel(
            "Connections that are used again",
            "Share of the requests that went out on a connection which was open already, by model.",
            "percentunit",
            (
                Query(
                    f'sum by (model) (rate(dragoman_upstream_connections_reused_total{{*,model=~"$model"}}{RATE})) / '
                    f'(sum by (model) (rate(dragoman_upstream_connections_reused_total{{*,model=~"$model"}}{RATE})) + '
                    f'sum by (model) (rate(dragoman_upstream_connections_opened_total{{*,model=~"$model"}}{RATE})))',
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Cache events",
            "By model and worker: on while every gateway is connected to where the engine publishes what it caches.",
            "bool_on_off",
            (
                Query(
                    'min by (model, worker) (dragoman_cache_connected{*,model=~"$model"})',
                    "{{model}} {{worker}}",
                ),
            ),
            "state-timeline",
            24,
            alarm_below=1,
        ),
        Panel(
            "Caches by what is known",
            "Caches of workers as each gateway knows them: the `whole`, a `part` (events were missed), or nothing "
            "(`silent`).",
            "short",
            (Query('sum by (state) (dragoman_cache_known{*,model=~"$model"})', "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Batches of cache events",
            "Batches a second: `read`, `lost` for good, or `unreadable`.",
            "cps",
            (Query(rate('dragoman_cache_batches_total{*,model=~"$model"}', "result"), "{{result}}"),),
        ),
        Panel(
            "Picks by what is cached",
            "Picks a second by what decided: what an `engine` told, what a worker was `sent`, or `none` of both.",
            "ops",
            (Query(rate('dragoman_cache_picks_total{*,model=~"$model"}', "by"), "{{by}}"),),
            stacked=True,
        ),
        Panel(
            "Blocks known",
            "Blocks that each worker's engine is known to have. At most 131,072 are held.",
            "short",
            (Query('max by (worker) (dragoman_cache_blocks{*,model=~"$model"})', "{{worker}}"),),
        ),
        Panel(
            "Memory for known blocks",
            "Bytes that what is known of caches takes in each gateway; prompts and replies that it keeps of "
            "streams, so that another worker can go on with them; and the cache of replies.",
            "bytes",
            (
                Query('sum by (instance) (dragoman_cache_bytes{*,model=~"$model"})', "{{instance}}"),
                Query("sum by (instance) (dragoman_kept_bytes{*})", "streams {{instance}}"),
                Query("sum by (instance) (dragoman_reply_cache_bytes{*})", "replies {{instance}}"),
                Query("sum by (instance) (dragoman_logged_prompts_waiting_bytes{*})", "prompts {{instance}}"),
            ),
        ),
        Panel(
            "vLLM: requests running",
            f"Sequences that run now, by worker. {_VLLM}",
            "short",
            (
                Query(
                    f"sum by (instance, model_name) (vllm:num_requests_running{_OF_MODEL})",
                    "{{instance}} {{model_name}}",
                ),
            ),
        ),
        Panel(
            "vLLM: requests waiting",
            f"Sequences that wait in the worker, by worker. {_VLLM}",
            "short",
            (
                Query(
                    f"sum by (instance, model_name) (vllm:num_requests_waiting{_OF_MODEL})",
                    "{{instance}} {{model_name}}",
                ),
            ),
        ),
        Panel(
            "vLLM: KV cache in use",
            "Share of the blocks of the KV cache, by worker. Near 1 the worker preempts sequences.",
            "percentunit",
            (
                Query(
                    f"max by (instance, model_name) (vllm:kv_cache_usage_perc{_OF_MODEL})",
                    "{{instance}} {{model_name}}",
                ),
            ),
        ),
        Panel(
            "vLLM: preemptions",
            "Sequences a second whose cache was taken away and which begin anew, by worker.",
            "cps",
            (Query(rate(f"vllm:num_preemptions_total{_OF_MODEL}", "instance"), "{{instance}}"),),
        ),
        Panel(
            "vLLM: tokens",
            f"Tokens a second, read and made, by worker. {_VLLM}",
            "cps",
            (
                Query(rate(f"vllm:prompt_tokens_total{_OF_MODEL}", "instance"), "read {{instance}}"),
                Query(rate(f"vllm:generation_tokens_total{_OF_MODEL}", "instance"), "made {{instance}}"),
            ),
        ),
        Panel(
            "vLLM: hits of the prefix cache",
            "Share of the prompt's tokens that need no computing, by worker.",
            "percentunit",
            (
                Query(
                    share(
                        f"vllm:prefix_cache_hits_total{_OF_MODEL}",
                        f"vllm:prefix_cache_queries_total{_OF_MODEL}",
                        "instance",
                    ),
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "vLLM: time to the first token",
            f"From the worker's own clock. {_VLLM}",
            "s",
            quantiles("vllm:time_to_first_token_seconds", "model_name", _OF_MODEL),
        ),
        Panel(
            "vLLM: between two tokens",
            f"From the worker's own clock. {_VLLM}",
            "s",
            quantiles("vllm:inter_token_latency_seconds", "model_name", _OF_MODEL),
        ),
        Panel(
            "vLLM: ends of sequences",
            "Sequences a second, by why they ended; `abort`: the client left.",
            "cps",
            (Query(rate(f"vllm:request_success_total{_OF_MODEL}", "finished_reason"), "{{finished_reason}}"),),
            stacked=True,
        ),
    ),
    (MODEL_CHOICE,),
)
