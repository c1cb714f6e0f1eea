"""Policies: whom they let in and out. Pods on their node's network have its address, which no selector matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from gateway.config import Config, kinds
from gateway.config.section import section_in
from tests.acceptance.helm.chart import CHART, parsed, template
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


CALLED = {kinds.ServiceUrl, kinds.ProxyUrl, kinds.CollectorUrl, kinds.KeySetUrl, kinds.IssuerUrl}
ELSEWHERE = {"models.*": "models.m.gateway", "batches": "gateway.batches", "console": "console"}
"""Options of the gateway that the chart's values have elsewhere than in `gateway.config`."""
OIDC = {"issuer": "https://login", "client_id": "c", "url": "https://ops", "roles": {"admin": ["a"]}}
EVERYTHING = {
    **GOOD,
    "redis": {**GOOD["redis"], "valkey": {"persistence": {"enabled": True}}},
    "console": {"enabled": True, "oidc": OIDC, "oidcExistingSecret": "oidc"},
    "gateway": {"batches": {"enabled": True, "bucket": {"name": "bucket", "url": "https://bucket"}}},
}
"""Values that allow each of these options, but for others of its section that the schema asks for."""
BY_BROWSERS = "console.oidc.url"


def addresses(section: type[BaseModel] = Config, at: str = "") -> Iterator[str]:
    """The options of the gateway that hold an address of a service, with dots."""
    for name, kind in get_type_hints(section, include_extras=True).items():
        if name in section.model_fields:
            held = section_in(section.model_fields[name].annotation)
            if held is not None:
                entry = ".*" if get_origin(kind) is dict else ""
                yield from addresses(held, f"{at}{name}{entry}.")
            elif {kind, *get_args(kind)} & CALLED:
                yield f"{at}{name}"


@pytest.mark.parametrize("option", sorted({*addresses()} - {BY_BROWSERS}))
def test_the_gateway_reaches_each_address_that_it_is_given(option: str) -> None:
    section = next((section for section in ELSEWHERE if option.startswith(section)), "")
    where = option.replace(section, ELSEWHERE[section]) if section else f"gateway.config.{option.replace('*', 'any')}"
    there = "https://there.example:8447"
    among = parsed(template(EVERYTHING, CHART, "--skip-schema-validation", "--set", f"{where}={there}"))
    assert open_to(policy(among, "dragoman"), 8447) == [None]


def test_a_proxy_of_the_environment_is_not_an_address() -> None:
    among = [parsed(template({**GOOD, **model(gateway=options)})) for options in ({}, {"proxy": "environment"})]
    assert policy(among[0], "dragoman") == policy(among[1], "dragoman")
