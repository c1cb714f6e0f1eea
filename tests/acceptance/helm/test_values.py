"""The values schema refuses what it does not know, and the chart's README says what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.chart import BEGIN, CHART, described, dialect_facts, readme, table, with_gateway_options
from tests.acceptance.helm.test_guards import GOOD, refusal, under

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()


def paths(value: Any, above: str = "") -> Iterator[str]:
    """The dotted paths of all leaves of the default values."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from paths(part, f"{above}{name}.")
    else:
        yield above.removesuffix(".")


def closed(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the schema names the keys of a mapping: the paths of these mappings, through lists as "0"."""
    node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    if "properties" in node:
        assert node["additionalProperties"] is False, above
        yield above
        for name, part in node["properties"].items():
            yield from closed(part, (*above, name))
    elif isinstance(node.get("additionalProperties"), dict):
        yield from closed(node["additionalProperties"], (*above, "m"))
    elif isinstance(node.get("items"), dict):
        yield from closed(node["items"], (*above, "0"))


def with_unknown(path: tuple[str, ...]) -> dict[str, Any]:
    """Values that hold an unknown key in the mapping at `path`."""
    value: Any = {"unknownKey": 1}
    for name in reversed(path):
        value = [value] if name == "0" else {name: value}
    return dict(value)


# Of the gateway's own options and of a model said twice, once is enough: they are the same definitions.
MAPPINGS = [path for path in closed(SCHEMA) if path[:1] != ("modelDefaults",) and "gateway" not in path[2:]]


def test_the_schema_has_an_entry_for_every_value_and_the_other_way_round() -> None:
    values = yaml.safe_load(TEXT)
    for path in paths(values):
        assert path in {name for name, _ in described(TEXT)} or _part(path), path


def _part(path: str) -> bool:
    """Below a value that is described as a whole, such as resources."""
    names = {name for name, _ in described(TEXT)}
    steps = path.split(".")
    return any(".".join(steps[:count]) in names for count in range(1, len(steps)))


def test_every_option_of_a_model_has_a_default_and_a_description() -> None:
    options = set(SCHEMA["$defs"]["model"]["properties"])
    assert set(yaml.safe_load(TEXT)["modelDefaults"]) == options
    named = {path.split(".")[1] for path, _ in described(TEXT) if path.startswith("modelDefaults.")}
    assert named == options


def merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: merged(one.get(name), value) for name, value in other.items()}
    return [merged(one[0], other[0])] if isinstance(one, list) else other


def test_an_unknown_key_is_refused_in_every_mapping(tmp_path: Path) -> None:
    said = refusal(reduce(merged, map(with_unknown, MAPPINGS)), tmp_path)
    places = {f"/{'/'.join(path)}" if path else "" for path in MAPPINGS}
    assert places - set(re.findall(r"at '(.*)': additional properties 'unknownKey' not allowed", said)) == set(), said


OPEN_ON_PURPOSE = {
    ("properties", "global"): "for charts above this one",
    ("properties", "extraObjects", "items"): "objects of any kind, or templates of them",
    ("$defs", "RequestPolicy", "properties", "defaults"): "members of requests, which the Job of the check reads",
    ("$defs", "RequestPolicy", "properties", "force"): "the same",
}


def open_places(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the schema takes a mapping of anything."""
    if isinstance(node, list):
        for index, one in enumerate(node):
            yield from open_places(one, (*above, str(index)))
    elif isinstance(node, dict):
        kinds = node.get("type", [])
        if "object" in kinds and node.get("additionalProperties", True) is True and "properties" not in node:
            yield above
        for key, one in node.items():
            named = key in ("properties", "$defs")
            for name, part in one.items() if named else [("", one)]:
                yield from open_places(part, (*above, key, name) if named else (*above, key))


def test_no_mapping_takes_just_anything() -> None:
    """A typo in what a site adds to Pods is found, as one in the chart's own values is."""
    assert set(open_places(SCHEMA)) == set(OPEN_ON_PURPOSE)


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("at '/gateway/podSecurityContext'", {"gateway": {"podSecurityContext": {"runAsUSer": 1}}}),
        ("at '/gateway/affinity/nodeAffinity'", {"gateway": {"affinity": {"nodeAffinity": {"preferred": []}}}}),
        ("at '/modelDefaults/volumes/0/nfs'", under("modelDefaults.volumes", [{"name": "a", "nfs": {"a": 1}}])),
        ("at '/check/sidecars/0/resources'", {"check": {"sidecars": [{"name": "a", "resources": {"limit": {}}}]}}),
        ("at '/redis/valkey/env/0/valueFrom'", under("redis.valkey.env", [{"name": "A", "valueFrom": {"secret": {}}}])),
        ("at '/monitoring/podMonitor/relabelings/0'", under("monitoring.podMonitor.relabelings", [{"target": "a"}])),
        ("at '/models/m/probes/liveness'", {"models": {"m": {"probes": {"liveness": {"periodSecond": 3}}}}}),
    ],
)  # fmt: skip
def test_a_typo_in_what_a_site_adds_is_refused(where: str, values: dict[str, Any], tmp_path: Path) -> None:
    assert f"{where}: additional properties" in refusal(values, tmp_path)


@pytest.mark.parametrize(
    "section",
    [
        {"listen": {"port": 9000}},
        {"relay": {"drain_s": 5}},
        {"models": {}},
        {"redis": {"url": "redis://r"}},
        {"metrics": {"enabled": False}},
        {"keys_file": "x"},
        {"queue": {"max_waiting": "many"}},
        {"dialects": {"openai": {"enable": True}}},
        {"limits": [{"name": "r", "kind": "request", "limit": 1}]},
    ],
    ids=str,
)
def test_options_of_the_gateway_are_checked_and_those_of_the_chart_refused(
    section: dict[str, Any], tmp_path: Path
) -> None:
    assert "/gateway/config" in refusal({"gateway": {"config": section}}, tmp_path)


def test_good_options_of_the_gateway_are_taken(tmp_path: Path) -> None:
    config = {"queue": {"max_waiting": 5, "timeout_s": "10s"}, "listen": {"max_body_bytes": "8MiB"}, "log": None}
    assert refusal({"gateway": {"config": config}}, tmp_path) == ""


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("at '/imagePullSecrets'", {"imagePullSecrets": ["a", "a"]}),
        ("commonLabels.owner: must be", {"commonLabels": {"owner": "search and ads"}}),
        ('commonLabels: the key "an owner" must be', {"commonLabels": {"an owner": "search"}}),
        ('gateway.podAnnotations: the key "a note" must be', {"gateway": {"podAnnotations": {"a note": "x"}}}),
        ("at '/gateway/env/0'", {"gateway": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}}),
        (
            "networkPolicy.dnsTo.0.ipBlock.cidr: must be a network",
            {"networkPolicy": {"dnsTo": [{"ipBlock": {"cidr": "10.0.0.2"}}]}},
        ),
        (
            "gateway.service.loadBalancerSourceRanges.0: must be a network",
            {"gateway": {"service": {"loadBalancerSourceRanges": ["10.0.0.1"]}}},
        ),
    ],
)
def test_what_kubernetes_refuses_has_no_place(where: str, values: dict[str, Any], tmp_path: Path) -> None:
    assert where in refusal(values, tmp_path)


def test_a_password_has_no_place(tmp_path: Path) -> None:
    assert refusal({"redis": {**GOOD["redis"], "password": "x"}}, tmp_path) != ""
    assert refusal({"auth": {**GOOD["auth"], "keys": {}}}, tmp_path) != ""


def test_the_schema_has_the_gateways_options_of_today() -> None:
    assert with_gateway_options(SCHEMA) == SCHEMA, "run `make docs`"


def test_the_chart_knows_every_dialect() -> None:
    assert json.loads((CHART / "files" / "dialects.json").read_text()) == dialect_facts(), "run `make docs`"
    assert SCHEMA["$defs"]["dialect"]["enum"] == list(dialect_facts()), "run `make docs`"


def test_the_readme_is_that_of_these_values() -> None:
    page = (CHART / "README.md").read_text()
    assert readme(page, TEXT, SCHEMA) == page, "run `make docs`"
    assert page.count(BEGIN) == 1


def test_the_table_tells_defaults_kinds_and_bounds() -> None:
    lines = table(TEXT, SCHEMA).splitlines()
    (replicas,) = [line for line in lines if line.startswith("| `gateway.replicas`")]
    cells = [cell.strip() for cell in replicas.strip("|").split(" | ")]
    assert cells[:3] == ["`gateway.replicas`", "number ≥ 0, ≤ 1000", "`2`"]
    assert cells[3].startswith("Copies of the gateway.")


def test_a_value_without_a_place_in_the_schema_is_found() -> None:
    with pytest.raises(KeyError):
        table("# New.\nunheardOf: 1\n", SCHEMA)
