"""One model, or several: its requests, times, tokens, queue and workers."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query
from scripts.dashboards.panels import (
    CLIENTS_THAT_LEFT,
    FIRST,
    QUEUE,
    REQUESTS_BY_OUTCOME,
    share_of_failures,
    time_added,
    times,
)
from scripts.dashboards.promql import BY_MODEL, MODEL_CHOICE, RATE, quantiles, rate

BOARD = Board(
    "model",
    "Dragoman / Model",
    "One model, or some: its requests, times, tokens, queue and workers.",
    BY_MODEL,
    (
        REQUESTS_BY_OUTCOME,
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
        share_of_failures("Share of failures"),
        *times("model"),
        Panel(
            "Time to first token by client API",
            f"95th percentile. {FIRST}",
            "s",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le, dialect) "
                    f"(rate(dragoman_time_to_first_token_seconds_bucket{{*}}{RATE})))",
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
        QUEUE,
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
            "Retries, ejections, prefills",
            "A second: further tries on another worker, times that the breaker left a worker out, and prompts for "
            "prefill workers by outcome. Requests that left their worker unseen (moved), streams that another one was "
            "asked to go on with, and those that ended with an error because none could (lost), by reason.",
            "ops",
            (
                Query(rate("dragoman_retries_total{*}", "model"), "retries {{model}}"),
                Query(rate("dragoman_worker_ejections_total{*}", "model"), "ejections {{model}}"),
                Query(rate("dragoman_prefills_total{*}", "model", "outcome"), "prefills {{outcome}} {{model}}"),
                Query(rate("dragoman_moved_total{*}", "reason"), "moved {{reason}}"),
                Query(rate("dragoman_continued_total{*}", "reason"), "continued {{reason}}"),
                Query(rate("dragoman_not_continued_total{*}", "reason"), "lost {{reason}}"),
            ),
        ),
        Panel(
            "Inter-token latency",
            "Between two pieces of output of a stream, as the gateway passes them on. Tokens that a worker sends "
            "together are one piece.",
            "s",
            quantiles("dragoman_inter_token_latency_seconds", "model"),
        ),
        Panel(
            "Wait in the queue",
            "Of the requests that had to wait for a worker, however the wait ended.",
            "s",
            quantiles("dragoman_queue_wait_seconds", "model"),
        ),
        Panel(
            "Refused by the queue",
            "Requests a second that got no worker: the queue was full, they had to make room for others (displaced), "
            "their wait would have been too long (slow) or was (late), or no worker could serve them.",
            "reqps",
            (Query(rate("dragoman_queue_refused_total{*}", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Aliases",
            "Requests a second that named the model by an alias. A pattern such as `gpt-*` is one; those of single "
            "keys are `other`.",
            "reqps",
            (Query(rate("dragoman_alias_requests_total{*}", "alias"), "{{alias}}"),),
            stacked=True,
        ),
        time_added("model"),
        CLIENTS_THAT_LEFT,
    ),
    (MODEL_CHOICE,),
)
