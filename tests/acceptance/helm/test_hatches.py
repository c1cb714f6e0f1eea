"""Valkey, the Pod of `helm test` and the Job of the check take what a site adds, as gateways and workers do.

Each part may have a ServiceAccount of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.acceptance.helm.chart import Object, Refused, find, parsed, template
from tests.acceptance.helm.property import flags, open_to, policy
from tests.acceptance.helm.schemas import faults, minors
from tests.acceptance.helm.test_guards import GOOD
from tests.acceptance.helm.test_values import SCHEMA
from tests.support.sampled import sampled

PARTS = {
    "redis.valkey": ("StatefulSet", "dragoman-valkey", ("spec", "template")),
    "test": ("Pod", "dragoman-completions", ()),
    "check": ("Job", "dragoman-check", ("spec", "template")),
}
POD: dict[str, Any] = {
    "initContainers": [{"name": "wait", "image": "wait:1"}],
    "volumes": [{"name": "site", "configMap": {"name": "site"}}],
    "dnsPolicy": "Default",
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "schedulerName": "other",
    "priorityClassName": "high",
    "runtimeClassName": "gvisor",
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
    "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["hub.example"]}],
}
CONTAINER: dict[str, Any] = {
    "env": [{"name": "SITE", "value": "eu"}],
    "envFrom": [{"configMapRef": {"name": "site"}}],
    "volumeMounts": [{"name": "site", "mountPath": "/etc/site"}],
    "resources": {"requests": {"cpu": "70m", "memory": "64Mi"}, "limits": {"memory": "999Mi"}},
}
ADDED: dict[str, Any] = {
    **POD,
    **CONTAINER,
    "sidecars": [{"name": "agent", "image": "agent:1"}],
    "podAnnotations": {"mesh.example/inject": "false"},
    "podLabels": {"owner": "search"},
    "podSecurityContext": {"runAsUser": 1000},
    "securityContext": {"runAsGroup": 1000},
}
ON_OBJECTS = {"annotations": {"argocd.argoproj.io/sync-wave": "1"}, "labels": {"cost": "shared"}}


def under(path: str, value: Any) -> dict[str, Any]:
    """GOOD with `value` joined at a dotted path."""
    first, _, rest = path.partition(".")
    part = {**GOOD.get(first, {}), rest: value} if rest else value
    return {**GOOD, first: part}


@cache
def hatched(where: str) -> tuple[Object, ...]:
    more = {} if where == "test" else ON_OBJECTS
    return tuple(parsed(template(under(where, {**ADDED, **more}))))


def pod(where: str, among: tuple[Object, ...]) -> Object:
    kind, name, path = PARTS[where]
    found = find(among, kind, name)
    for step in path:
        found = found[step]
    return found


@pytest.mark.parametrize("where", PARTS)
def test_a_part_takes_what_a_site_adds(where: str) -> None:
    made = pod(where, hatched(where))
    spec, main = made["spec"], made["spec"]["containers"][0]
    for key, value in POD.items():
        assert value == spec[key] or all(one in spec[key] for one in value), key
    for key, value in CONTAINER.items():
        assert value == main[key] or all(one in main[key] for one in value), key
    assert [one["name"] for one in spec["containers"]][1:] == ["agent"]
    assert ADDED["podAnnotations"].items() <= made["metadata"]["annotations"].items()
    assert made["metadata"]["labels"]["owner"] == "search"
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (1000, True)
    assert (main["securityContext"]["runAsGroup"], main["securityContext"]["readOnlyRootFilesystem"]) == (1000, True)
    if where != "test":
        whole = find(hatched(where), *PARTS[where][:2])["metadata"]
        assert all(ON_OBJECTS[key].items() <= whole[key].items() for key in ON_OBJECTS)


@pytest.mark.parametrize("where", PARTS)
def test_kubernetes_takes_it(where: str) -> None:
    assert [fault for one in hatched(where) for fault in faults(one, minors()[-1])] == []


@pytest.mark.parametrize("where", PARTS)
def test_no_hatch_of_the_gateway_is_missing(where: str) -> None:
    """But for what such a Pod cannot have: it is no server on its node's network."""
    node = SCHEMA
    for step in where.split("."):
        node = node["properties"][step]
    hatches = set(ADDED) | set(ON_OBJECTS) | {"serviceAccount"}
    assert set(SCHEMA["properties"]["gateway"]["properties"]) >= hatches
    assert set(node["properties"]) >= hatches - (set(ON_OBJECTS) if where == "test" else set())


def test_hooks_stay_hooks() -> None:
    hooked = [one for where in ("test", "check") for one in hatched(where) if one["kind"] in ("Pod", "Job")]
    assert hooked
    assert all("helm.sh/hook" in one["metadata"]["annotations"] for one in hooked)


@pytest.mark.parametrize("where", ["test", "check"])
def test_what_says_nothing_of_nodes_runs_on_those_of_the_gateways(where: str) -> None:
    own = {"nodeSelector": {"pool": "gateways"}, "tolerations": [{"key": "g", "operator": "Exists"}]}
    spec = pod(where, tuple(parsed(template({**GOOD, "gateway": own}))))["spec"]
    assert {key: spec[key] for key in own} == own


@pytest.mark.parametrize("option", [{"maxMemory": "300mb"}, {"persistence": {"enabled": True}}])
def test_a_changed_configuration_of_valkey_restarts_it(option: dict[str, Any]) -> None:
    def annotations(values: dict[str, Any]) -> Object:
        made = pod("redis.valkey", tuple(parsed(template(values))))["metadata"]["annotations"]
        return dict(made)

    assert annotations(GOOD) == annotations(GOOD)
    assert annotations(under("redis.valkey", option)) != annotations(GOOD)


ACCOUNTS = {
    "gateway": ("Deployment", "dragoman", "dragoman-gateway"),
    "modelDefaults": ("Deployment", "dragoman-m", "dragoman-m"),
    "redis.valkey": ("StatefulSet", "dragoman-valkey", "dragoman-valkey"),
    "test": ("Pod", "dragoman-completions", "dragoman-completions"),
}


def account(among: list[Object], kind: str, name: str) -> str:
    found = find(among, kind, name)["spec"]
    spec = found if kind == "Pod" else found["template"]["spec"]
    return str(spec["serviceAccountName"])


@pytest.mark.parametrize("where", ACCOUNTS)
def test_a_part_has_an_account_of_its_own(where: str) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}
    among = parsed(template(under(where, {"serviceAccount": {"create": True, "annotations": role}})))
    for part, (kind, name, own) in ACCOUNTS.items():
        assert account(among, kind, name) == (own if part == where else "dragoman")
    made = find(among, "ServiceAccount", ACCOUNTS[where][2])
    assert made["metadata"]["annotations"] == role
    assert made["automountServiceAccountToken"] is False
    named = parsed(template(under(where, {"serviceAccount": {"name": "site"}})))
    assert account(named, *ACCOUNTS[where][:2]) == "site"
    assert [one["metadata"]["name"] for one in named if one["kind"] == "ServiceAccount"] == ["dragoman"]


def test_models_may_share_an_account_and_not_two_roles() -> None:
    def values(*annotations: dict[str, str]) -> dict[str, Any]:
        accounts = [{"create": True, "name": "workers", "annotations": one} for one in annotations]
        return {
            **GOOD,
            "models": {f"m{at}": {"model": "org/m", "serviceAccount": one} for at, one in enumerate(accounts)},
        }

    among = parsed(template(values({"a": "1"}, {"a": "1"})))
    assert sorted(one["metadata"]["name"] for one in among if one["kind"] == "ServiceAccount") == [
        "dragoman",
        "workers",
    ]
    with pytest.raises(Refused, match="two parts create the account workers with different annotations"):
        template(values({"a": "1"}, {"a": "2"}))


@pytest.mark.parametrize(
    ("identity", "port", "networks"),
    [
        ("eks", 80, ["169.254.170.23/32", "fd00:ec2::23/128"]),
        ("gke", 988, ["169.254.169.252/32", "169.254.169.254/32"]),
        ("irsa", 443, None),
        ("azure", 443, None),
    ],
)
@pytest.mark.parametrize("where", sampled(ACCOUNTS, 3))
def test_policies_let_a_part_get_the_identity_that_is_asked_for(
    where: str, identity: str, port: int, networks: list[str] | None
) -> None:
    """And the other parts nothing."""
    offline = {"models": {"m": {"model": "/models/m", "offline": True}}}
    before = parsed(template({**GOOD, **offline}))
    after = parsed(template({**under(where, {"serviceAccount": {"identity": identity}}), **offline}))
    peers = [None] if networks is None else [{"ipBlock": {"cidr": one}} for one in networks]
    for part, (_, name, _) in ACCOUNTS.items():
        rules = open_to(policy(after, name), port)
        assert rules == (peers if part == where else []), part
        assert part == where or policy(before, name) == policy(after, name)


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"])
@pytest.mark.parametrize("more", [{"gpus": 2}, {"gpus": 2, "nodes": 2}], ids=["one node", "two nodes"])
def test_a_model_is_not_split_over_slices(resource: str, more: dict[str, Any]) -> None:
    kind = "LeaderWorkerSet" if "nodes" in more else "Deployment"
    split = {"--tensor-parallel-size", "--pipeline-parallel-size"}

    def given(resource: str) -> set[str]:
        values = {**GOOD, "models": {"m": {"model": "org/m", "gpuResource": resource, **more}}}
        return set(flags(parsed(template(values)), kind, "dragoman-m"))

    assert given("nvidia.com/gpu") & split
    assert not given(resource) & split
