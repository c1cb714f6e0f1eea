"""Combinations that cannot work are refused at the render, and the message begins with the value's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.api import upgraded
from tests.helm.chart import CHART, Refused, template

GOOD: dict[str, Any] = {
    "auth": {"existingSecret": "keys"},
    "redis": {"existingSecret": "redis"},
    "models": {"m": {"model": "org/m"}},
}
OPEN = {"auth": {"mode": "open"}}
EXTERNAL = {"mode": "external", "existingSecret": "redis", "external": {"addresses": ["r:6379"]}}
LOADED = {"model": "org/m"}
LIMIT = {"name": "r", "kind": "requests", "limit": 1}
JWT = {"jwt": {"issuer": "https://idp", "audience": "llm", "jwks_url": "https://idp/keys"}}
SCALED = {"enabled": True}
EVENTS = {"enabled": True}
PROMETHEUS = {"monitoring": {"prometheusAddress": "http://p:9090"}}


def model(**options: Any) -> dict[str, Any]:
    return {"models": {"m": {"model": "org/m", **options}}}


def redis(**options: Any) -> dict[str, Any]:
    return {"redis": {**EXTERNAL, "external": {**EXTERNAL["external"], **options}}}  # type: ignore[dict-item]  # a dict


def under(path: str, value: Any) -> dict[str, Any]:
    """Values that hold `value` at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


OWN_LABEL = {"app.kubernetes.io/name": "mine"}
LABELS = [
    "commonLabels",
    *(f"{where}.{part}" for where in ("gateway", "modelDefaults") for part in ("labels", "podLabels")),
    "gateway.service.labels",
    *(f"monitoring.{part}.labels" for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")),
]
MOUNT = {"name": "v", "mountPath": "/v"}
# Faults in additions to a Pod, of gateways and workers alike.
ADDED: list[tuple[str, str, Any]] = [
    ("env", "A is there twice", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    ("env", "MY_TOKEN may hold a secret; take it from one by valueFrom", [{"name": "MY_TOKEN", "value": "1"}]),
    ("volumes", "v is there twice", [{"name": "v"}, {"name": "v"}]),
    ("volumeMounts", "/v is there twice", [MOUNT, MOUNT]),
    ("sidecars", "s is the name of another container", [{"name": "s"}, {"name": "s"}]),
    ("initContainers", "i is the name of another container", [{"name": "i"}, {"name": "i"}]),
]


BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("image.repository", "name the gateway's image", {"image": {"repository": ""}}),
    ("models", "name at least one model", {"models": {}}),
    (
        "auth.existingSecret",
        "name the Secret with the keys, set gateway.config.jwt, or let everybody in with auth.mode: open",
        {"auth": {}},
    ),
    ("auth.existingSecret", "has no effect with auth.mode: open", {"auth": {"mode": "open", "existingSecret": "keys"}}),
    ("gateway.config.jwt", "has no effect with auth.mode: open", {**OPEN, "gateway": {"config": JWT}}),
    (
        "gateway.config.cache_salt",
        "has no effect with auth.mode: open, where all callers are one",
        {**OPEN, "gateway": {"config": {"cache_salt": {"secret_file": "/x"}}}},
    ),
    (
        "gateway.config.seal",
        "has no effect with auth.mode: open, where all callers are one",
        {**OPEN, "gateway": {"config": {"seal": {"secret_file": "/x"}}}},
    ),
    (
        "console.existingSecret",
        "name the Secret with the console's key: other Pods can call its port",
        {"console": {"enabled": True}},
    ),
    (
        "console.existingSecret",
        "has no effect without console.enabled",
        {"console": {"existingSecret": "console"}},
    ),
    (
        "gateway.tracingHeadersSecret.name",
        "has no effect without gateway.config.tracing",
        {"gateway": {"tracingHeadersSecret": {"name": "s"}}},
    ),
    (
        "redis.existingSecret",
        "name the Secret with the password of Redis, or do without it with redis.mode: none",
        {"redis": {}},
    ),
    (
        "redis.existingSecret",
        "name the Secret with the password of Redis, or do without it with redis.mode: none",
        {"redis": {"mode": "external", "external": {"addresses": ["r:6379"]}}},
    ),
    (
        "redis.external.addresses",
        "say where the external Redis is",
        {"redis": {"mode": "external", "existingSecret": "redis"}},
    ),
    (
        "redis.external.addresses",
        "has no effect without redis.mode: external",
        {"redis": {"mode": "none", "external": {"addresses": ["r:6379"]}}},
    ),
    ("redis.external.noPassword", "contradicts redis.existingSecret", redis(noPassword=True)),
    ("redis.external.caSecret", "has no effect without redis.external.tls", redis(caSecret={"name": "ca"})),
    ("redis.external.db", "a cluster has database 0 alone", redis(topology="cluster", db=1)),
    (
        "redis.valkey.persistence.enabled",
        "has no effect without redis.mode: valkey",
        {"redis": {**EXTERNAL, "valkey": {"persistence": {"enabled": True}}}},
    ),
    (
        "gateway.config.limits",
        "without Redis each gateway counts for itself; set redis.mode, or gateway.replicas: 1",
        {
            "redis": {"mode": "none"},
            "gateway": {"config": {"limits": [{"name": "r", "kind": "requests", "limit": 1}]}},
        },
    ),
    (
        "gateway.config.accounting.redis_stream",
        "needs Redis; set redis.mode",
        {"redis": {"mode": "none"}, "gateway": {"config": {"accounting": {"redis_stream": "s"}}}},
    ),
    (
        "gateway.config.store.where",
        "needs Redis; set redis.mode",
        {"redis": {"mode": "none"}, "gateway": {"config": {"store": {"where": "redis"}}}},
    ),
    (
        "gateway.autoscaling.minReplicas",
        "is more than maxReplicas",
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}}},
    ),
    ("ingress.hosts", "name at least one host", {"ingress": {"enabled": True}}),
    ("httpRoute.hosts", "name at least one host", {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}),
    (
        "httpRoute.parentRefs",
        "name the Gateway that carries the routes",
        {"httpRoute": {"enabled": True, "hosts": [{"host": "a.example"}]}},
    ),
    (
        "ingress.hosts[1].dialects",
        "azure is not enabled in gateway.config.dialects",
        {
            "ingress": {
                "enabled": True,
                "hosts": [{"host": "a.example"}, {"host": "b.example", "dialects": ["openai", "azure"]}],
            },
            "gateway": {"config": {"dialects": {"azure": {"enabled": False}}}},
        },
    ),
    ("test.model", "there is no model other", {"test": {"model": "other"}}),
    (
        "models.a_b",
        "its objects would have the names of those of models.a-b",
        {"models": {"a-b": {"model": "x/y"}, "a_b": {"model": "x/y"}}},
    ),
    ("models.valkey", "is the name of another object of the chart", {"models": {"valkey": {"model": "x/y"}}}),
    (
        "models.m.kvEvents.enabled",
        "the chart does not run the workers at urls; set gateway.kv_events and their own flag",
        {"models": {"m": {"urls": ["http://w:8000"], "kvEvents": EVENTS}}},
    ),
    (
        "models.m.kvEvents.enabled",
        "embedded workers do not tell what they have cached",
        {"models": {"m": {"engine": "embedded", "kvEvents": EVENTS}}},
    ),
    (
        "models.m.args",
        "data parallel ranks behind one address each publish what they cached, and the gateway cannot choose the rank;"
        " do without kvEvents and gateway.kv_events",
        model(kvEvents=EVENTS, gpus=2, args=["--data-parallel-size=2"]),
    ),
    (
        "models.m.args",
        "data parallel ranks behind one address each publish what they cached",
        model(gateway={"kv_events": {}}, gpus=2, args=["-dp", "2"]),
    ),
    (
        "models.m.args",
        "an engine without a prefix cache tells nothing of it; do without kvEvents and gateway.kv_events",
        model(kvEvents=EVENTS, args=["--no-enable-prefix-caching"]),
    ),
    (
        "models.m.args",
        "--kv-events-config is set by kvEvents already",
        model(kvEvents=EVENTS, args=["--kv-events-config", "{}"]),
    ),
    (
        "models.m.args",
        "--kv-events-config is set by kvEvents already",
        model(kvEvents=EVENTS, args=["--kv-events-config.publisher=null"]),
    ),
    (
        "models.m.gateway.kv_events",
        "is set by kvEvents already",
        model(kvEvents=EVENTS, gateway={"kv_events": {"port": 6000}}),
    ),
    (
        "models.m.kvEvents.port",
        "kvEvents.port and kvEvents.replayPort must differ",
        model(kvEvents={**EVENTS, "port": 5558}),
    ),
    (
        "models.m.kvEvents.replayPort",
        "kvEvents.port and kvEvents.replayPort must differ",
        model(kvEvents={**EVENTS, "port": 5600, "replayPort": 5600}),
    ),
    (
        "models.m.kvEvents.port",
        "is where requests go; choose another port",
        model(kvEvents={**EVENTS, "port": 8000}),
    ),
    (
        "models.m.kvEvents.replayPort",
        "is where requests go; choose another port",
        model(kvEvents={**EVENTS, "replayPort": 8000}),
    ),
    (
        "models.m.kvEvents.enabled",
        "has no effect with gateway.policy: round_robin",
        model(kvEvents=EVENTS, gateway={"policy": "round_robin"}),
    ),
    (
        "models.m.kvEvents.enabled",
        "vLLM publishes over IPv4 alone; it cannot be joined with ipv6",
        {**model(kvEvents=EVENTS), "ipv6": True},
    ),
    ("models.m.gateway.max_in_flight", "is set by sequences already", model(sequences=8, gateway={"max_in_flight": 8})),
    (
        "models.m.gateway.upstream_model",
        "the chart's own workers serve the model under its name here",
        model(gateway={"upstream_model": "other"}),
    ),
    ("models.m.caSecret.name", "has no effect without urls", model(caSecret={"name": "ca"})),
    (
        "models.m.backend",
        "has no effect without urls; the chart's own workers are chosen by engine",
        model(backend="tgi"),
    ),
    (
        "models.m.model",
        "has no effect beside urls; the workers' own name is gateway.upstream_model",
        model(urls=["http://a:1"]),
    ),
    ("models.m.model", "name the model, or say in urls where its workers are", {"models": {"m": {}}}),
    (
        "models.m.model",
        "is a folder outside cache.mountPath, which is all that is mounted",
        model(model="/elsewhere/m"),
    ),
    (
        "models.m.autoscaling.enabled",
        "the chart does not run the workers at urls",
        {"models": {"m": {"urls": ["http://a:1"], "autoscaling": SCALED}}, **PROMETHEUS},
    ),
    (
        "models.m.nodes",
        "the chart does not run the workers at urls",
        {"models": {"m": {"urls": ["http://a:1"], "nodes": 2}}},
    ),
    ("models.m.nodes", "an embedded worker runs on one machine", {"models": {"m": {"engine": "embedded", "nodes": 2}}}),
    ("models.m.args", "the chart sets --port itself", model(args=["--port=9000"])),
    ("models.m.args", "the chart sets --max-num-seqs itself", model(args=["--max-num-seqs", "8"])),
    ("models.m.args", "the chart sets --max-num-seqs itself", model(args=["--max_num_seqs=8"])),
    (
        "models.m.args",
        "the chart sets --name itself",
        {"models": {"m": {"engine": "embedded", "args": ["--name", "x"]}}},
    ),
    (
        "models.m.cache.mode",
        "an emptyDir starts empty and nothing may be loaded into it; choose pvc, hostPath or image",
        model(offline=True, cache={"mode": "emptyDir"}),
    ),
    (
        "modelDefaults.cache.mode (taken by models.m)",
        "an emptyDir starts empty and nothing may be loaded into it; choose pvc, hostPath or image",
        {"airGapped": True},
    ),
    (
        "models.m.cache.mode",
        "claimPerReplica makes a StatefulSet, which is no group of nodes",
        model(nodes=2, cache={"mode": "claimPerReplica"}),
    ),
    ("models.m.cache.hostPath", "name the folder on the node", model(cache={"mode": "hostPath"})),
    ("models.m.cache.image", "name the image with the weights", model(cache={"mode": "image"})),
    (
        "models.m.cache.accessMode",
        "several Pods share the claim; choose ReadWriteMany or ReadOnlyMany, or cache.mode: claimPerReplica",
        model(replicas=2, cache={"mode": "pvc", "accessMode": "ReadWriteOnce"}),
    ),
    ("models.m.cache.readOnly", "an empty cache that nobody may write stays empty", model(cache={"readOnly": True})),
    ("models.m.gpus", "a group of Pods needs a GPU in each", model(nodes=2, gpus=0)),
    (
        "models.m.discovery",
        "the registry needs Redis; set redis.mode",
        {**model(discovery="redis"), "redis": {"mode": "none"}},
    ),
    (
        "models.m.discovery",
        "workers register with one server, not with Sentinels or a cluster; choose dns",
        {**model(discovery="redis"), **redis(topology="sentinel")},
    ),
    (
        "models.m.discovery",
        "embedded workers enter no registry; leave it at auto",
        {"models": {"m": {"engine": "embedded", "discovery": "redis"}}},
    ),
    (
        "models.m.apiKeySecret.name",
        "embedded workers ask for no key",
        {"models": {"m": {"engine": "embedded", "apiKeySecret": {"name": "k"}}}},
    ),
    (
        "models.m.args",
        "splits the model over 2 GPUs, and a copy has 4 (gpus, nodes)",
        model(gpus=4, args=["--tensor_parallel_size", "2"]),
    ),
    (
        "models.m.args",
        "splits the model over 16 GPUs, and a copy has 8 (gpus, nodes)",
        model(gpus=4, nodes=2, args=["-tp=4", "-pp", "4"]),
    ),
    (
        "models.m.args",
        "splits the model over 4 GPUs, and a copy has 2 (gpus, nodes)",
        model(gpus=2, args=["--tensor-parallel-size=2", "--data-parallel-size=2"]),
    ),
    *(
        ("models.m.args", f"{flag}: probes and gateways speak plain HTTP to the chart's workers", model(args=[flag]))
        for flag in ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--enable-ssl-refresh")
    ),
    ("models.m.args", "--hf-token holds a secret; set hubTokenSecret", model(args=["--hf-token=hf_x"])),
    (
        "models.m.rollout",
        "with surge the new Pod waits for a claim that the old one has; choose replace, or cache.accessMode:"
        " ReadWriteMany",
        model(rollout="surge", cache={"mode": "pvc", "accessMode": "ReadWriteOnce"}),
    ),
    (
        "models.m.rollout",
        "claimPerReplica makes a StatefulSet, which replaces its Pods; choose replace",
        model(rollout="surge", cache={"mode": "claimPerReplica"}),
    ),
    (
        "models.m.gateway.aliases",
        "a is a name of models.l already",
        {"models": {"l": {**LOADED, "gateway": {"aliases": ["a"]}}, "m": {**LOADED, "gateway": {"aliases": ["a"]}}}},
    ),
    ("models.m.gateway.aliases", "a is a name of models.m already", model(gateway={"aliases": ["a", "a"]})),
    (
        "models.m.gateway.aliases",
        "l is a name of models.l already",
        {"models": {"l": LOADED, "m": {**LOADED, "gateway": {"aliases": ["l"]}}}},
    ),
    ("models.m.gateway.fallback", "there is no model other", model(gateway={"fallback": ["other"]})),
    ("models.m.gateway.mirror", "there is no model other", model(gateway={"mirror": {"model": "other"}})),
    (
        "models.m.gateway.split",
        "there is no model other",
        model(gateway={"split": [{"model": "other", "share": 0.5}]}),
    ),
    (
        "models.m.gateway.headers",
        "X-Api-Key may hold a secret; set headersSecret",
        model(gateway={"headers": {"X-Api-Key": "k"}}),
    ),
    (
        "gateway.config.limits",
        "r is the name of a limit before it that matches everything",
        {"gateway": {"config": {"limits": [LIMIT, {**LIMIT, "match": {"key": ["k"]}}]}}},
    ),
    *(
        (
            f"gateway.service.{option}",
            "needs gateway.service.type: LoadBalancer",
            {"gateway": {"service": {option: value}}},
        )
        for option, value in [
            ("loadBalancerClass", "c.example/x"),
            ("loadBalancerSourceRanges", ["10.0.0.0/8"]),
            ("externalTrafficPolicy", "Local"),
        ]
    ),
    (
        "monitoring.prometheusRule.alerts.DragomanBu",
        "there is no such alert",
        {"monitoring": {"prometheusRule": {"alerts": {"DragomanBu": {"enabled": False}}}}},
    ),
    *(
        (
            where,
            "the chart sets app.kubernetes.io/name itself, and finds its Pods by such labels",
            under(where, OWN_LABEL),
        )
        for where in LABELS
    ),
    *((f"gateway.{part}", why, {"gateway": {part: value}}) for part, why, value in ADDED),
    *((f"models.m.{part}", why, model(**{part: value})) for part, why, value in ADDED),
    ("gateway.sidecars", "gateway is the name of another container", {"gateway": {"sidecars": [{"name": "gateway"}]}}),
    ("models.m.sidecars", "worker is the name of another container", model(sidecars=[{"name": "worker"}])),
    ("monitoring.prometheusAddress", "KEDA needs it for models.m.autoscaling.enabled", model(autoscaling=SCALED)),
    (
        "models.m.autoscaling.minReplicas",
        "is more than models.m.autoscaling.maxReplicas",
        {**model(autoscaling={**SCALED, "minReplicas": 9, "maxReplicas": 8}), **PROMETHEUS},
    ),
    (
        "models.m.autoscaling.enabled",
        "a RayCluster cannot be scaled by KEDA; choose multiNode: LeaderWorkerSet",
        {**model(autoscaling=SCALED, nodes=2, multiNode="RayCluster"), **PROMETHEUS},
    ),
    (
        "models.m.autoscaling.enabled",
        "an embedded worker has none of vLLM's figures",
        {"models": {"m": {"engine": "embedded", "autoscaling": SCALED}}, **PROMETHEUS},
    ),
]


NO_IMAGES = ("models.m.cache.mode", "image volumes need Kubernetes 1.33")


def refusal(values: Mapping[str, Any], tmp_path: Path, chart: Path = CHART, *more: str) -> str:
    """What helm says of values that it refuses; "" where it does not."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **values}))
    try:
        template(file, chart, *more)
    except Refused as refused:
        return str(refused)
    return ""


def test_what_the_guards_start_from_is_good(tmp_path: Path) -> None:
    assert refusal({}, tmp_path) == ""


@pytest.mark.parametrize(("value", "why", "values"), BAD)
def test_a_bad_combination_is_refused_by_the_name_of_the_value(
    value: str, why: str, values: dict[str, Any], tmp_path: Path
) -> None:
    assert f": {value}: {why}" in refusal(values, tmp_path)


def test_image_volumes_need_a_cluster_that_has_them(tmp_path: Path) -> None:
    values = model(cache={"mode": "image", "image": "weights:1"}, model="/models/m")
    assert refusal(values, tmp_path) == ""
    assert ": " + ": ".join(NO_IMAGES) in refusal(values, tmp_path, CHART, "--kube-version", "1.32.0")


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


def persistent(spec: dict[str, Any]) -> dict[str, Any]:
    """A claim in a cluster."""
    metadata = {"name": "dragoman-m-cache"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


FIXED = "cannot be changed in place; docs/upgrading.md#storage says how"
KEPT = {"redis": {**GOOD["redis"], "valkey": {"persistence": {"enabled": True, "size": "8Gi"}}}}
STORED = [
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
        "models.m.cache.accessMode",
        FIXED,
        model(cache={"mode": "pvc", "accessMode": "ReadOnlyMany"}),
        persistent(claim("100Gi")),
    ),
]


def in_cluster(values: Mapping[str, Any], live: dict[str, Any], tmp_path: Path) -> str:
    """What helm says of values that it refuses to upgrade to; "" where it does not."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **values}))
    try:
        upgraded(file, [live], tmp_path)
    except Refused as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(("value", "why", "values", "live"), STORED)
def test_a_claim_that_cannot_become_what_the_values_say_is_named(
    value: str, why: str, values: dict[str, Any], live: dict[str, Any], tmp_path: Path
) -> None:
    assert f": {value}: {why}" in in_cluster(values, live, tmp_path)


@pytest.mark.parametrize(
    ("values", "live"),
    [
        (KEPT, stateful("dragoman-valkey", claim("8192Mi", "what-the-cluster-took"))),
        ({}, stateful("dragoman-valkey")),
        (model(cache={"mode": "pvc", "size": "0.5Ti"}), persistent(claim("100Gi"))),
        (
            model(rollout="surge", cache={"mode": "pvc", "existingClaim": "dragoman-m-cache"}),
            persistent({**claim("100Gi"), "accessModes": ["ReadWriteOnce", "ReadWriteMany"]}),
        ),
        (model(cache={"mode": "claimPerReplica"}), stateful("dragoman-m", claim("100Gi"))),
    ],
)
def test_a_claim_that_can_is_not_refused(values: dict[str, Any], live: dict[str, Any], tmp_path: Path) -> None:
    assert in_cluster(values, live, tmp_path) == ""


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


@pytest.mark.parametrize(("option", "why", "values"), COMMON)
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
