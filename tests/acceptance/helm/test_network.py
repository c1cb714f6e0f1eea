"""Policies and Pods on their node's network: others see them by the addresses of nodes, which no selector matches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.helm.chart import parsed, template
from tests.acceptance.helm.property import components, open_to, policy, reached_from
from tests.acceptance.helm.test_guards import GOOD, model

NODES = {"ipBlock": {"cidr": "10.4.0.0/16"}}
OWN, OTHER = {"gateway": {"hostNetwork": True}}, model(hostNetwork=True)


def rules(values: dict[str, Any], nodes: list[Any]) -> dict[str, list[Any]]:
    """The peers of each rule between Pods of the chart."""
    among = parsed(template({**GOOD, **values, "networkPolicy": {"nodes": nodes}}))
    return {
        "workers": open_to(policy(among, "dragoman"), 8000),
        "gateways": reached_from(policy(among, "dragoman-m"), 8000),
        "redis": reached_from(policy(among, "dragoman-valkey"), "redis"),
        "test": open_to(policy(among, "dragoman-completions"), 8080),
    }


@pytest.mark.parametrize(
    ("values", "touched"),
    [({}, set()), (OWN, {"gateways", "redis", "test"}), (OTHER, {"workers", "redis"}), ({**OWN, **OTHER}, set("all"))],
)
def test_rules_for_pods_on_their_nodes_network_hold_for_the_nodes(values: dict[str, Any], touched: set[str]) -> None:
    plain = rules({}, [])
    assert {name: components(peers) for name, peers in plain.items()} == {
        "workers": ["worker"],
        "gateways": ["gateway"],
        "redis": ["gateway", "worker"],
        "test": ["gateway"],
    }
    touched = set(plain) if touched == set("all") else touched
    for name, peers in rules(values, []).items():
        assert peers == ([None] if name in touched else plain[name]), name
    for name, peers in rules(values, [NODES]).items():
        assert peers == ([*plain[name], NODES] if name in touched else plain[name]), name


@pytest.mark.parametrize(
    ("values", "scraped"),
    [({}, False), ({"podMonitor": {"enabled": True}}, True), ({"podMonitor": {"job": "engines"}}, True)],
)
def test_prometheus_reaches_workers_where_it_scrapes_them(values: dict[str, Any], scraped: bool) -> None:
    among = parsed(template({**GOOD, "monitoring": values}))
    there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert (there in reached_from(policy(among, "dragoman-m"), 8000)) is scraped
