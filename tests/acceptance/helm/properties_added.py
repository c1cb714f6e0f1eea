"""Properties of a site's additions to the chart's objects, for gateways and workers alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.acceptance.helm.chart import Object, find, pods
from tests.acceptance.helm.property import Property, at, environment

POD = "_pod.tpl"
PARTS = ("Deployment/dragoman", "Deployment/dragoman-one", "LeaderWorkerSet/dragoman-group leader")
RANK = "LeaderWorkerSet/dragoman-group rank"


def _pods(among: Sequence[Object], *names: str) -> list[Object]:
    """The Pods of gateways and workers, or of those that are named."""
    found = dict(pods(among))
    return [found[name] for name in names or (*PARTS, RANK)]


def each(test: Callable[[Object], bool]) -> Callable[[Sequence[Object]], bool]:
    """Whether it holds for the spec of a gateway, of a worker and of each Pod of a group."""
    return lambda among: all(test(pod["spec"]) for pod in _pods(among))


def _names(values: Sequence[Object], key: str = "name") -> list[Any]:
    return [value[key] for value in values]


def _once(spec: Object) -> bool:
    """Lists that Kubernetes and Helm read by names hold each name once."""
    lists = [_names(spec["volumes"]), _names([*spec["containers"], *spec.get("initContainers", [])])]
    for one in spec["containers"]:
        lists += [_names(one.get("env", [])), _names(one.get("volumeMounts", []), "mountPath")]
    return all(len(names) == len(set(names)) for names in lists)


def replaced(among: Sequence[Object]) -> bool:
    gateway, worker = _pods(among, *PARTS[:2])
    hub = environment(worker["spec"]["containers"][0])["HF_HOME"]
    tmp = [one for one in gateway["spec"]["volumes"] if one["name"] == "tmp"]
    return hub == "/models/hub" and tmp == [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]


def mounted(among: Sequence[Object]) -> bool:
    return all(
        {"site", "nccl"} & set(_names(pod["spec"]["volumes"]))
        and {"/etc/site", "/opt/nccl"} & set(_names(pod["spec"]["containers"][0]["volumeMounts"], "mountPath"))
        for pod in _pods(among)
    )


def _secured(spec: Object) -> bool:
    """Joined: what the chart says beside it stays."""
    container = spec["containers"][0]["securityContext"]
    added = {"NET_BIND_SERVICE", "IPC_LOCK"} & set(container["capabilities"]["add"])
    kept = container["capabilities"]["drop"] == ["ALL"] and container["readOnlyRootFilesystem"] is True
    pod = spec["securityContext"]
    return bool(added) and kept and pod["runAsNonRoot"] is True and (pod["runAsUser"], pod["fsGroup"]) != (65532, 65532)


def networked(among: Sequence[Object]) -> bool:
    gateway, worker, leader = (pod["spec"] for pod in _pods(among, *PARTS))
    both = all((one["hostNetwork"], one["dnsPolicy"]) == (True, "ClusterFirstWithHostNet") for one in (gateway, worker))
    return both and "hostNetwork" not in leader and leader["dnsPolicy"] == "Default" and "dnsConfig" in gateway


def probed(among: Sequence[Object]) -> bool:
    gateway, worker, rank = (pod["spec"]["containers"][0] for pod in _pods(among, *PARTS[:2], RANK))
    return bool(
        gateway["livenessProbe"]
        == {
            "httpGet": {"path": "/livez", "port": "metrics"},
            "periodSeconds": 30,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        }
        and gateway["startupProbe"]
        == {"httpGet": {"path": "/livez", "port": "metrics"}, "failureThreshold": 30}
        | {"periodSeconds": 2, "timeoutSeconds": 2}
        and (worker["startupProbe"]["failureThreshold"], worker["startupProbe"]["periodSeconds"]) == (500, 10)
        and worker["livenessProbe"]["exec"] == {"command": ["alive"]}
        and "httpGet" not in worker["livenessProbe"]
        and not any(name.endswith("Probe") for name in rank)
    )


def hooked(among: Sequence[Object]) -> bool:
    gateway, worker, rank = (pod["spec"]["containers"][0]["lifecycle"] for pod in _pods(among, *PARTS[:2], RANK))
    return (
        gateway == {"preStop": {"exec": {"command": ["sleep", "9"]}}}
        and set(worker) == {"preStop", "postStart"}
        and set(rank) == {"preStop"}
    )


def labelled(among: Sequence[Object]) -> bool:
    """A label of a part stands before a common one, and none is there twice."""
    gateway, worker = find(among, "Deployment", "dragoman"), find(among, "Deployment", "dragoman-one")
    return bool(
        gateway["metadata"]["labels"]["cost"] == "shared"
        and worker["metadata"]["labels"]["cost"] == "gpu"
        and gateway["metadata"]["annotations"] == worker["metadata"]["annotations"] == {"reloader.example/auto": "true"}
        and at(gateway, "spec.template.metadata.labels")["owner"] == "platform"
        and at(worker, "spec.template.metadata.labels")["owner"] == "search"
    )


def service(among: Sequence[Object]) -> bool:
    spec = find(among, "Service", "dragoman")["spec"]
    return bool(
        spec["loadBalancerClass"] == "example.com/internal"
        and spec["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
        and spec["externalTrafficPolicy"] == "Local"
        and spec["ipFamilies"] == ["IPv4", "IPv6"]
        and spec["ipFamilyPolicy"] == "RequireDualStack"
    )


def scraped(among: Sequence[Object]) -> bool:
    ends = [
        (find(among, kind), at(find(among, kind), f"spec.{key}.0"))
        for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints"))
    ]
    return all(
        monitor["metadata"]["namespace"] == "monitoring"
        and monitor["spec"]["namespaceSelector"] == {"matchNames": ["llm"]}
        and end["scrapeTimeout"] == "10s"
        and end["relabelings"] == [{"targetLabel": "cluster", "replacement": "eu"}]
        and end["metricRelabelings"][0]["action"] == "drop"
        for monitor, end in ends
    )


def alerts(among: Sequence[Object]) -> bool:
    rule = find(among, "PrometheusRule")
    alerts = {one["alert"]: one for group in at(rule, "spec.groups") for one in group["rules"]}
    fast = alerts["DragomanErrorBudgetFast"]
    return (
        rule["metadata"]["namespace"] == "monitoring"
        and "DragomanBug" not in alerts
        and fast["expr"].count("> 0.5") == 2
        and "0.144" not in fast["expr"]
        and ">= 10" in fast["expr"]
        and (fast["for"], fast["labels"]["severity"]) == ("5m", "warning")
        and fast["annotations"]["changed"] == "threshold: 0.5, for: 5m"
    )


def headers(among: Sequence[Object]) -> bool:
    """Headers that may hold keys are nowhere in the configuration."""
    found = environment(_pods(among, PARTS[0])[0]["spec"]["containers"][0])
    name = "HEADERS_PARTNER_HOSTED_MODEL"
    return bool(
        found["DRAGOMAN_TRACING__HEADERS"] == {"secretKeyRef": {"name": "collector", "key": "headers"}}
        and found["DRAGOMAN_GUARDS__PERSONAL_DATA__HEADERS"] == {"secretKeyRef": {"name": "guard", "key": "headers"}}
        and found[name] == {"secretKeyRef": {"name": "partner", "key": "headers"}}
        and found["DRAGOMAN_MODELS"] == f'{{"Partner/hosted-model": {{"headers": $({name})}}}}'
    )


ALL = (
    Property(
        "nothing that has a name is there twice in a Pod",
        "hatches",
        each(_once),
        ((POD, "{{- if not (has (get . $key) $names) -}}", "{{- if true -}}"),),
    ),
    Property(
        "environment comes from whole Secrets and ConfigMaps too",
        "hatches",
        each(lambda spec: bool(spec["containers"][0]["envFrom"])),
        ((POD, '$main "envFrom" .', '$main "env" .'),),
    ),
    Property(
        "containers run before and beside the chart's own, which stays the first",
        "hatches",
        each(
            lambda spec: (
                _names(spec["containers"]) in (["gateway", "proxy"], ["worker", "agent"])
                and _names(spec["initContainers"]) in (["wait"], ["warm"])
            )
        ),
        (
            (POD, "(concat $spec.containers (default list $own.sidecars))", "$spec.containers"),
            (POD, "{{- with $own.initContainers -}}", "{{- with false -}}"),
        ),
    ),
    Property(
        "security contexts are joined over the chart's",
        "hatches",
        each(_secured),
        (
            (POD, "(mergeOverwrite $spec.securityContext", "(merge $spec.securityContext"),
            (
                POD,
                "(mergeOverwrite $main.securityContext (default dict $own.securityContext))",
                "$main.securityContext",
            ),
        ),
    ),
    Property(
        "scheduler, spread and hosts are the site's",
        "hatches",
        each(
            lambda spec: (
                spec["schedulerName"] in ("other", "volcano")
                and _names(spec["topologySpreadConstraints"], "topologyKey") == ["rack"]
            )
        ),
        (
            (POD, '"schedulerName" ', ""),
            (POD, "{{- with $own.topologySpreadConstraints -}}", "{{- with false -}}"),
        ),
    ),
)
