"""Requests and tokens by team, and by key."""

from __future__ import annotations

from scripts.dashboards.grafana import Board, Panel, Query, Variable
from scripts.dashboards.promql import BY_NAMESPACE, OUTCOMES, rate, share

_REQUESTS = rate("dragoman_key_requests_total{*}", "key", "team")
_REFUSED = rate('dragoman_key_refusals_total{*,reason="limit"}', "key", "team")
BOARD = Board(
    "team",
    "Dragoman / Team",
    "Who uses the gateway: requests and tokens by team. Callers without a team are `none`; beyond a hundred teams the "
    "others are together `other`.",
    f'{BY_NAMESPACE},team=~"$team"',
    (
        Panel(
            "Requests",
            "Requests in the time that is shown.",
            "short",
            (Query("sum(increase(dragoman_team_requests_total{*}[$__range]))", "requests"),),
            "stat",
            8,
        ),
        Panel(
            "Tokens",
            "Tokens in the time that is shown, by direction.",
            "short",
            (Query("sum by (direction) (increase(dragoman_team_tokens_total{*}[$__range]))", "{{direction}}"),),
            "stat",
            8,
        ),
        Panel(
            "Teams",
            "Teams that asked for something in the time that is shown.",
            "short",
            (Query("count(sum by (team) (increase(dragoman_team_requests_total{*}[$__range])) > 0)", "teams"),),
            "stat",
            8,
        ),
        Panel(
            "Requests by team",
            "Requests a second.",
            "reqps",
            (Query(rate("dragoman_team_requests_total{*}", "team"), "{{team}}"),),
            stacked=True,
        ),
        Panel(
            "Requests by outcome",
            f"Requests a second, by team and end. {OUTCOMES}",
            "reqps",
            (Query(rate("dragoman_team_requests_total{*}", "team", "outcome"), "{{team}} {{outcome}}"),),
        ),
        Panel(
            "Tokens made",
            "Output tokens a second, by team.",
            "cps",
            (Query(rate('dragoman_team_tokens_total{*,direction="output"}', "team"), "{{team}}"),),
            stacked=True,
        ),
        Panel(
            "Tokens read",
            "Input tokens a second, by team.",
            "cps",
            (Query(rate('dragoman_team_tokens_total{*,direction="input"}', "team"), "{{team}}"),),
            stacked=True,
        ),
        Panel(
            "Share of refusals",
            "Requests that were answered with a 4xx, limits among them, of all of the team.",
            "percentunit",
            (
                Query(
                    share(
                        'dragoman_team_requests_total{*,outcome="refused"}', "dragoman_team_requests_total{*}", "team"
                    ),
                    "{{team}}",
                ),
            ),
        ),
        Panel(
            "Most tokens",
            "The ten teams with the most tokens in the time that is shown.",
            "short",
            (
                Query(
                    "topk(10, sum by (team) (increase(dragoman_team_tokens_total{*}[$__range])))",
                    "{{team}}",
                ),
            ),
            "bargauge",
        ),
        Panel(
            "Spent",
            "Money that requests of models with a price cost in the time that is shown, by team, in the currency of "
            "`spend`.",
            "short",
            (
                Query(
                    'topk(10, sum by (team) (increase(dragoman_cost_nano_total{*,team=~"$team"}[$__range]))) / 1e9',
                    "{{team}}",
                ),
            ),
            "bargauge",
        ),
        Panel(
            "Cost by model",
            "Money an hour, by the model that answered.",
            "short",
            (Query(rate('dragoman_cost_nano_total{*,team=~"$team"}', "model") + " * 3600 / 1e9", "{{model}}"),),
            stacked=True,
        ),
        Panel(
            "Requests by key",
            "Requests a second of the ten keys with the most. Keys are shown with `metrics.top_keys` alone.",
            "reqps",
            (Query(f"topk(10, {_REQUESTS})", "{{key}} ({{team}})"),),
            stacked=True,
        ),
        Panel(
            "Refused by limits, by key",
            "Requests a second that a limit or a budget refused, of the ten keys with the most.",
            "reqps",
            (Query(f"topk(10, {_REFUSED})", "{{key}} ({{team}})"),),
        ),
        Panel(
            "Most tokens, by key",
            "The ten keys with the most tokens in the time that is shown.",
            "short",
            (
                Query(
                    "topk(10, sum by (key, team) (increase(dragoman_key_tokens_total{*}[$__range])))",
                    "{{key}} ({{team}})",
                ),
            ),
            "bargauge",
        ),
        Panel(
            "Spent, by key",
            "Money that the ten dearest keys cost in the time that is shown, in the currency of `spend`.",
            "short",
            (
                Query(
                    "topk(10, sum by (key, team) (increase(dragoman_key_cost_nano_total{*}[$__range]))) / 1e9",
                    "{{key}} ({{team}})",
                ),
            ),
            "bargauge",
        ),
    ),
    (Variable("team", "dragoman_team_requests_total", "team", "Team"),),
)
