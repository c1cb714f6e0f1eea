"""Limits, Redis and the records of usage."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query, Variable
from scripts.dashboards.promql import BY_NAMESPACE, rate

BOARD = Board(
    "limits",
    "Dragoman / Limits",
    "What limits decide, whether Redis counts for all gateways, and the usage records.",
    BY_NAMESPACE,
    (
        Panel(
            "Gateways that count in Redis",
            "Share of the gateways whose limits' store decides. The others count their share of each limit alone.",
            "percentunit",
            (Query("avg(dragoman_limits_strict{*})", "strict"),),
            "stat",
            8,
            alarm_below=1,
        ),
        Panel(
            "Gateways on the same counters",
            "The fewest that any gateway knows of. Without Redis each counts its share of a limit by this number.",
            "short",
            (Query("min(dragoman_limits_replicas{*})", "gateways"),),
            "stat",
            8,
        ),
        Panel(
            "Lost usage records",
            "In the time that is shown: records that did not reach the Redis stream.",
            "short",
            (Query('sum(increase(dragoman_accounting_records_total{*,result="lost"}[$__range]))', "lost"),),
            "stat",
            8,
            alarm=1,
        ),
        Panel(
            "Refused by limit",
            "Requests a second that each limit refused with a 429.",
            "reqps",
            (Query(rate('dragoman_limits_refused_total{*,limit=~"$limit"}', "limit"), "{{limit}}"),),
        ),
        Panel(
            "Refused by shadow limits, if they were on",
            "Requests a second that each limit with `shadow: true` would have refused.",
            "reqps",
            (Query(rate('dragoman_limits_shadowed_total{*,limit=~"$limit"}', "limit"), "{{limit}}"),),
        ),
        Panel(
            "Budgets that passed a share",
            "Budgets that passed a share of their amount in the time that is shown; 1 is a refusal, but of a shadow.",
            "short",
            (
                Query(
                    "sum by (budget, at, shadow) (increase(dragoman_budget_passed_total{*}[$__range]))",
                    "{{budget}} {{at}} {{shadow}}",
                ),
            ),
        ),
        Panel(
            "Requests that hold slots",
            "Requests that hold slots of a limit on requests at once, by gateway.",
            "short",
            (Query("sum by (instance) (dragoman_limits_in_flight{*})", "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Whose store decides",
            "By gateway: on while Redis decides, off while the gateway decides alone.",
            "bool_on_off",
            (Query("min by (instance) (dragoman_limits_strict{*})", "{{instance}}"),),
            "state-timeline",
            alarm_below=1,
        ),
        Panel(
            "Answers 429",
            "Requests a second that were answered 429, by model. A worker's own 429 is in it.",
            "reqps",
            (Query(rate('dragoman_requests_total{*,status="429"}', "model"), "{{model}}"),),
        ),
        Panel(
            "Usage records",
            "Records of usage a second, by what became of them.",
            "cps",
            (Query(rate("dragoman_accounting_records_total{*}", "result"), "{{result}}"),),
        ),
        Panel(
            "Keys of the store",
            "Keys of `keys_store` in force, by gateway, and those that Redis lost.",
            "short",
            (
                Query("max by (instance) (dragoman_stored_keys{*})", "{{instance}}"),
                Query("max by (instance) (dragoman_stored_keys_missing{*}) > 0", "{{instance}}, lost"),
            ),
        ),
        Panel(
            "Whose keys are up to date",
            "By gateway: on while the store of keys answers, off while known keys work on without it.",
            "bool_on_off",
            (Query("min by (instance) (dragoman_keys_store_up{*})", "{{instance}}"),),
            "state-timeline",
            alarm_below=1,
        ),
        Panel(
            "Decisions",
            "What each limit decided, a second: `admitted`, `refused`, or `shadowed` by a shadow limit.",
            "reqps",
            (
                Query(
                    rate('dragoman_limit_decisions_total{*,limit=~"$limit"}', "limit", "decision"),
                    "{{limit}} {{decision}}",
                ),
            ),
        ),
        Panel(
            "Decisions by mode",
            "A second: `strict` in Redis, `local` by one gateway alone, `closed` where a limit refuses without Redis.",
            "reqps",
            (Query(rate('dragoman_limit_decisions_total{*,limit=~"$limit"}', "mode"), "{{mode}}"),),
            stacked=True,
        ),
        Panel(
            "Decided alone",
            "Requests a second that a gateway decided alone, because Redis was down or too slow.",
            "reqps",
            (Query(rate("dragoman_limits_alone_total{*}", "instance"), "{{instance}}"),),
        ),
    ),
    (Variable("limit", "dragoman_limits_refused_total", "limit", "Limit"),),
)
