"""Grafana's JSON of a dashboard, from a short description of it.

Format: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/, in schema
version 39, which Grafana 10.4 and later read. Everything else is left to Grafana's defaults.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from msgspec import Struct

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that the reader chooses at the top of a dashboard."""
WIDTH = 24
"""Grafana's columns."""

Kind = Literal["timeseries", "stat", "bargauge", "state-timeline"]
Unit = Literal["none", "short", "reqps", "cps", "ops", "s", "percentunit", "bytes", "bool_on_off"]


class Query(Struct, frozen=True):
    """expr is PromQL, in which `{*` opens a selector with the dashboard's own filter. legend may name labels, as
    `{{model}}`."""

    expr: str
    legend: str


class Panel(Struct, frozen=True):
    """width is in Grafana's columns, of which a dashboard has 24. alarm colours a value from there on red; alarm_below
    colours a value below it red."""

    title: str
    text: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    stacked: bool = False
    alarm: float | None = None
    alarm_below: float | None = None

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8


class Variable(Struct, frozen=True):
    """A choice at the top of a dashboard: the values that `label` has in `metric`."""

    name: str
    metric: str
    label: str
    text: str


class Board(Struct, frozen=True):
    """One dashboard. name is the file's, filter what `{*` stands for in queries."""

    name: str
    title: str
    text: str
    filter: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()


def text(board: Board) -> str:
    """The dashboard as Grafana reads it from a file."""
    return json.dumps(_board(board), indent=2, ensure_ascii=False) + "\n"


def _board(board: Board) -> dict[str, Any]:
    namespace = Variable("namespace", "dragoman_draining", "namespace", "Namespace")
    variables = (namespace, *board.variables)
    return {
        "uid": f"dragoman-{board.name}",
        "title": board.title,
        "description": board.text,
        "tags": ["dragoman"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [{"type": "dashboards", "title": "Dragoman", "tags": ["dragoman"], "keepTime": True}],
        "templating": {"list": [_source(), *(_variable(one) for one in variables)]},
        "panels": _panels(board),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus"}


def _variable(one: Variable) -> dict[str, Any]:
    query = f"label_values({one.metric}, {one.label})"
    return {
        "name": one.name,
        "type": "query",
        "label": one.text,
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": one.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Also fits series without the label: outside Kubernetes there is no namespace.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(board: Board) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    x = y = lowest = 0
    for number, panel in enumerate(board.panels, 1):
        if x + panel.width > WIDTH:
            x, y = 0, lowest
        found.append(_panel(number, panel, board.filter, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, lowest = x + panel.width, max(lowest, y + panel.height)
    return found


def _panel(number: int, panel: Panel, filter_: str, place: dict[str, int]) -> dict[str, Any]:
    drawn: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 20 if panel.stacked else 5, "showPoints": "never"}
    if panel.stacked:
        drawn["stacking"] = {"mode": "normal"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "noValue": "0"}
    if panel.kind == "timeseries":
        defaults["custom"] = drawn
    if panel.alarm is not None:
        defaults["thresholds"] = _thresholds(("green", None), ("red", panel.alarm))
    elif panel.alarm_below is not None:
        defaults["thresholds"] = _thresholds(("red", None), ("green", panel.alarm_below))
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr.replace("{*", "{" + filter_),
                "legendFormat": query.legend,
                "range": panel.kind not in ("stat", "bargauge"),
                "instant": panel.kind in ("stat", "bargauge"),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _thresholds(*steps: tuple[str, float | None]) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Kind, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none"},
    "bargauge": {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic"},
    "state-timeline": {"showValue": "never", "mergeValues": True},
}
