"""Combinations that cannot work are refused at the render, and the message begins with the value's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.helm.api import upgraded
from tests.acceptance.helm.chart import CHART, Refused, template
from tests.support.sampled import sampled

GOOD: dict[str, Any] = {
    "auth": {"existingSecret": "keys"},
    "redis": {"existingSecret": "redis"},
    "models": {"m": {"model": "org/m"}},
}
EVENTS = {"enabled": True}


def model(**options: Any) -> dict[str, Any]:
    return {"models": {"m": {"model": "org/m", **options}}}


def under(path: str, value: Any) -> dict[str, Any]:
    """Values that hold `value` at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


LABELS = [
    "commonLabels",
    *(f"{where}.{part}" for where in ("gateway", "modelDefaults") for part in ("labels", "podLabels")),
    "gateway.service.labels",
    *(f"{where}.podLabels" for where in ("test", "check")),
    "check.labels",
    *(f"monitoring.{part}.labels" for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")),
]
MOUNT = {"name": "v", "mountPath": "/v"}
HOST = {"ip": "192.0.2.1", "hostnames": ["h"]}
SPREAD = {"topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}
SECRET = {"name": "TOKEN", "value": "1"}
LOGIN = {"name": "HTTPS_PROXY", "value": "http://u:p@proxy:3128"}
CONTAINERS = ("initContainers", "sidecars")
# Faults in additions to a Pod, of gateways and workers alike.
ADDED: list[tuple[str, str, Any]] = [
    ("resources", "requests more of cpu than its limit", {"requests": {"cpu": "1100m"}, "limits": {"cpu": 1}}),
    ("env", "A is there twice", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    ("env", "MY_TOKEN may hold a secret; take it from one by valueFrom", [{"name": "MY_TOKEN", "value": "1"}]),
    ("volumes", "v is there twice", [{"name": "v"}, {"name": "v"}]),
    ("volumeMounts", "/v is there twice", [MOUNT, MOUNT]),
    ("volumeMounts", "there is no volume v", [MOUNT]),
    ("hostAliases", "192.0.2.1 is there twice", [HOST, HOST]),
    ("topologySpreadConstraints", "rack, DoNotSchedule is there twice", [SPREAD, SPREAD]),
    ("env", "TOKEN may hold a secret; take it from one by valueFrom", [SECRET]),
    *(
        (part, "HTTPS_PROXY has an address with a user or a password; take it from a Secret by valueFrom", value)
        for part, value in (("env", [LOGIN]), *((part, [{"name": "c", "env": [LOGIN]}]) for part in CONTAINERS))
    ),
    *(
        (part, "TOKEN may hold a secret; take it from one by valueFrom", [{"name": "c", "env": [SECRET]}])
        for part in CONTAINERS
    ),
    ("sidecars", "s is the name of another container", [{"name": "s"}, {"name": "s"}]),
    ("initContainers", "i is the name of another container", [{"name": "i"}, {"name": "i"}]),
]


Case = tuple[str, str, dict[str, Any]]
"""The value that the refusal names, the reason, and values that are refused beside `GOOD`."""


def cases() -> Iterator[Case]:
    for case in yaml.safe_load(Path(__file__).with_name("guards.yaml").read_text()):
        values = case.get("values", {})
        yield case["value"], case["why"], {**values, **model(**case["model"])} if "model" in case else values
    for where in LABELS:
        why = "the chart sets app.kubernetes.io/name itself, and finds its Pods by such labels"
        yield where, why, under(where, {"app.kubernetes.io/name": "mine"})
    for part, why, value in ADDED:
        yield f"gateway.{part}", why, {"gateway": {part: value}}
        yield f"models.m.{part}", why, model(**{part: value})
        for where in ("redis.valkey", "test", "check"):
            values = under(f"{where}.{part}", value)
            yield (
                f"{where}.{part}",
                why,
                {"redis": {**GOOD["redis"], **values["redis"]}} if "redis" in values else values,
            )


BAD = list(cases())
NO_IMAGES = ("models.m.cache.mode", "image volumes need Kubernetes 1.33")


def refusal(values: Mapping[str, Any], tmp_path: Path, *more: str, live: dict[str, Any] | None = None) -> str:
    """helm's words for values that it refuses, or refuses to upgrade to where `live` is in the cluster; else ""."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **values}))
    try:
        if live is None:
            template(file, CHART, *more)
        else:
            upgraded(file, [live], tmp_path)
    except Refused as refused:
        return str(refused)
    return ""


def test_what_the_guards_start_from_is_good(tmp_path: Path) -> None:
    assert refusal({}, tmp_path) == ""


@pytest.mark.parametrize(("value", "why", "values"), sampled(BAD, 12))
def test_a_bad_combination_is_refused_by_the_name_of_the_value(
    value: str, why: str, values: dict[str, Any], tmp_path: Path
) -> None:
    assert f": {value}: {why}" in refusal(values, tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"ipv6": True, "gateway": {"service": {"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}}},
        {"monitoring": {"podMonitor": {"interval": "1m", "scrapeTimeout": "60s"}}},
        {"redis": {**GOOD["redis"], "valkey": {"maxMemory": "2gb", "resources": {"limits": {"memory": None}}}}},
        {"redis": {**GOOD["redis"], "valkey": {"resources": None}}},
        {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}, "limits": {"cpu": 2}}}},
        {"gateway": {"replicas": 1, "config": {"store": {"where": "memory"}, "limiter": {"store": "memory"}}}},
        {"gateway": {"promptLog": {"enabled": True, "size": "1Gi"}, "config": {"prompt_log": {"max_bytes": 1048576}}}},
        {"gateway": {"promptLog": {"enabled": True, "size": "1Gi", "existingClaim": "prompts"}}},
        {"gateway": {"env": [{"name": "DRAGOMAN_METRICS__GENAI", "value": "true"}]}},
        {"gateway": {"secrets": {"a": "s"}, "volumeMounts": [{"name": "secrets-a", "mountPath": "/a"}]}},
        {**model(gateway={"aliases": ["claude-*", "a"]}), "test": {"model": "a"}},
        model(resources={"limits": {"nvidia.com/gpu": 4}}, gpus=0),
        {"gateway": {"env": [{"name": "HTTPS_PROXY", "value": "http://$(USER):$(PASS)@proxy:3128"}]}},
        model(
            env=[{"name": "NOTE", "value": "http://proxy:3128/@a is of me@site"}, {"name": "A", "value": "http://a"}]
        ),
        model(volumeMounts=[{"name": "cache", "mountPath": "/weights"}], topologySpreadConstraints=[SPREAD]),
        {"models": {"m": {"model": "org/m"}, "u": {"urls": ["http://u"], "egressPorts": [1], "egressTo": []}}},
    ],
    ids=str,
)
def test_a_good_combination_is_not_refused(values: dict[str, Any], tmp_path: Path) -> None:
    assert refusal(values, tmp_path) == ""


def test_image_volumes_need_a_cluster_that_has_them(tmp_path: Path) -> None:
    values = model(cache={"mode": "image", "image": "weights:1"}, model="/models/m")
    assert refusal(values, tmp_path) == ""
    assert ": " + ": ".join(NO_IMAGES) in refusal(values, tmp_path, "--kube-version", "1.32.0")


def claim(size: str, storage_class: str = "fast") -> dict[str, Any]:
    """The spec of a claim in a cluster, which has filled in the class."""
    return {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }


def stateful(name: str, *claims: dict[str, Any]) -> dict[str, Any]:
    """A StatefulSet in a cluster."""
    templates = {"volumeClaimTemplates": [{"spec": one} for one in claims]} if claims else {}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": templates}


def persistent(spec: dict[str, Any], name: str = "dragoman-m-cache") -> dict[str, Any]:
    """A claim in a cluster."""
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def balanced(**fields: Any) -> dict[str, Any]:
    """The Service for clients in a cluster, a load balancer."""
    spec = {"type": "LoadBalancer", "ipFamilies": ["IPv4"], **fields}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dragoman"}, "spec": spec}


def balancer(**options: Any) -> dict[str, Any]:
    return {"ipv6": True, "gateway": {"service": {"type": "LoadBalancer", **options}}}


SERVED = "cannot be changed in place; docs/upgrading.md#services says how"
FIXED = "cannot be changed in place; docs/upgrading.md#storage says how"
KEPT = {"redis": {**GOOD["redis"], "valkey": {"persistence": {"enabled": True, "size": "8Gi"}}}}
STORED = [
    ("gateway.service.loadBalancerClass", SERVED, balancer(loadBalancerClass="a/b"), balanced(loadBalancerClass="a/c")),
    ("gateway.service.ipFamilies", SERVED, balancer(ipFamilies=["IPv6"]), balanced()),
    ("redis.valkey.persistence.enabled", FIXED, KEPT, stateful("dragoman-valkey")),
    ("redis.valkey.persistence.enabled", FIXED, {}, stateful("dragoman-valkey", claim("8Gi"))),
    ("redis.valkey.persistence.size", FIXED, KEPT, stateful("dragoman-valkey", claim("4Gi"))),
    (
        "models.m.cache.size",
        FIXED,
        model(cache={"mode": "claimPerReplica", "size": "200Gi"}),
        stateful("dragoman-m", claim("100Gi")),
    ),
    (
        "models.m.cache.storageClass",
        FIXED,
        model(cache={"mode": "claimPerReplica", "storageClass": "other"}),
        stateful("dragoman-m", claim("100Gi")),
    ),
    ("models.m.cache.size", FIXED, model(cache={"mode": "pvc", "size": "90Gi"}), persistent(claim("100Gi"))),
    (
        "gateway.batches.size",
        FIXED,
        {**KEPT, "gateway": {"batches": {"enabled": True, "size": "90Gi"}}},
        persistent(claim("100Gi"), "dragoman-batches"),
    ),
    (
        "models.m.cache.storageClass",
        FIXED,
        model(cache={"mode": "pvc", "storageClass": "other"}),
        persistent(claim("100Gi")),
    ),
    (
        "models.m.rollout",
        "with surge the new Pod waits for a claim that the old one has; choose replace, or cache.accessMode:"
        " ReadWriteMany",
        model(rollout="surge", cache={"mode": "pvc", "existingClaim": "dragoman-m-cache"}),
        persistent({**claim("100Gi"), "accessModes": ["ReadWriteOnce"]}),
    ),
    (
        "models.m.cache.existingClaim",
        "several Pods share the claim; choose ReadWriteMany or ReadOnlyMany, or cache.mode: claimPerReplica",
        model(replicas=2, cache={"mode": "pvc", "existingClaim": "dragoman-m-cache"}),
        persistent({**claim("100Gi"), "accessModes": ["ReadWriteOnce"]}),
    ),
    (
        "models.m.cache.accessMode",
        FIXED,
        model(cache={"mode": "pvc", "accessMode": "ReadOnlyMany"}),
        persistent(claim("100Gi")),
    ),
]


@pytest.mark.parametrize(("value", "why", "values", "live"), sampled(STORED, 12))
def test_what_cannot_become_what_the_values_say_is_named(
    value: str, why: str, values: dict[str, Any], live: dict[str, Any], tmp_path: Path
) -> None:
    assert f": {value}: {why}" in refusal(values, tmp_path, live=live)


@pytest.mark.parametrize(
    ("values", "live"),
    [
        (KEPT, stateful("dragoman-valkey", claim("8192Mi", "what-the-cluster-took"))),
        ({}, stateful("dragoman-valkey")),
        # The cloud has given it a class.
        (balancer(), balanced(loadBalancerClass="a/c")),
        (balancer(loadBalancerClass="a/b"), balanced(type="ClusterIP")),
        (balancer(ipFamilies=["IPv4", "IPv6"], ipFamilyPolicy="PreferDualStack"), balanced()),
        (model(cache={"mode": "pvc", "size": "0.5Ti"}), persistent(claim("100Gi"))),
        (
            model(rollout="surge", cache={"mode": "pvc", "existingClaim": "dragoman-m-cache"}),
            persistent({**claim("100Gi"), "accessModes": ["ReadWriteOnce", "ReadWriteMany"]}),
        ),
        (model(cache={"mode": "claimPerReplica"}), stateful("dragoman-m", claim("100Gi"))),
    ],
)
def test_what_can_is_not_refused(values: dict[str, Any], live: dict[str, Any], tmp_path: Path) -> None:
    assert refusal(values, tmp_path, live=live) == ""


def hoisted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values where `modelDefaults` says what the model said, but for what is a model's own."""
    given = values["models"]["m"]
    own = {option: given[option] for option in ("model", "urls") if option in given}
    common = {option: value for option, value in given.items() if option not in own}
    return {**values, "models": {"m": own}, "modelDefaults": common}


def holds(options: Any, path: str) -> bool:
    """Whether an option is set by its path."""
    key, _, rest = path.partition(".")
    return isinstance(options, dict) and key in options and (not rest or holds(options[key], rest))


NOT_COMMON = [
    # In modelDefaults it is for the models with urls.
    ("models.m.backend", "has no effect without urls; the chart's own workers are chosen by engine"),
    # The other model has a say in it.
    ("models.m.gateway.aliases", "a is a name of models.l already"),
    ("models.m.gateway.aliases", "l is a name of models.l already"),
    ("models.m.gateway.aliases", "claude-* is a name of models.l already"),
    # In modelDefaults they are for the models that have use for them.
    ("models.m.egressTo", "has no effect without urls"),
    ("models.m.egressPorts", "has no effect without urls"),
    ("models.m.cache.existingClaim", "has no effect without cache.mode: pvc"),
    ("models.m.cache.hostPath", "has no effect without cache.mode: hostPath"),
    ("models.m.cache.image", "has no effect without cache.mode: image"),
    # modelDefaults always has both, and one of them is named.
    ("models.m.kvEvents.port", "kvEvents.port and kvEvents.replayPort must differ"),
]
COMMON = [
    (value.removeprefix("models.m."), why, hoisted(values))
    for value, why, values in BAD
    if value.startswith("models.m.")
    and (value, why) not in NOT_COMMON
    and holds(hoisted(values)["modelDefaults"], value.removeprefix("models.m."))
]


@pytest.mark.parametrize(("option", "why", "values"), sampled(COMMON, 12))
def test_what_is_wrong_in_the_defaults_is_named_there(
    option: str, why: str, values: dict[str, Any], tmp_path: Path
) -> None:
    why = why.replace("models.m.", "modelDefaults.")
    assert f": modelDefaults.{option} (taken by models.m): {why}" in refusal(values, tmp_path)


def test_what_is_missing_is_asked_of_the_model(tmp_path: Path) -> None:
    values = {"modelDefaults": {"cache": {"mode": "hostPath"}}}
    assert ": models.m.cache.hostPath: name the folder on the node" in refusal(values, tmp_path)


def test_a_model_with_an_option_of_its_own_is_not_refused_for_the_defaults(tmp_path: Path) -> None:
    values = model(kvEvents={"enabled": False}, args=["--kv-events-config", "{}"])
    assert refusal({**values, "modelDefaults": {"kvEvents": EVENTS}}, tmp_path) == ""


def test_flags_of_the_defaults_are_refused_where_those_of_a_model_are(tmp_path: Path) -> None:
    args = ["--kv-events-config", "{}"]
    assert refusal(model(args=args), tmp_path) == ""
    assert refusal({"modelDefaults": {"args": args}}, tmp_path) == ""
    on = {"modelDefaults": {"kvEvents": EVENTS, "args": args}}
    assert "--kv-events-config is set by kvEvents already" in refusal(on, tmp_path)


def test_every_guard_has_a_case() -> None:
    text = (CHART / "templates" / "_guards.tpl").read_text()
    own = re.findall(r'include "dragoman.refuse" \(list \$of "([^"]+)" (?:\(printf )?"([^"]+)"', text)
    made = re.findall(
        r'include "dragoman.refuse" \(list \$of (?:\(printf "([^"]+)" \$\w+\)|\$part) (?:\(printf )?"([^"]+)"', text
    )
    assert len(own) + len(made) == text.count('include "dragoman.refuse"')
    others = re.findall(r'fail (?:\(printf )?"([^"]+)"', text)
    assert len(others) == text.count("fail ")
    # The last one is what dragoman.refuse itself does.
    guards = [f"%s.{option or '%s'}: {why}" for option, why in own + made] + [one for one in others if one != "%s: %s"]
    said = [f"{value}: {why}" for value, why, *_ in (*BAD, *STORED, NO_IMAGES)]
    patterns = [re.sub(r"%[sd]", ".+", re.escape(guard)) for guard in guards]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, one) for one in said)] == []
