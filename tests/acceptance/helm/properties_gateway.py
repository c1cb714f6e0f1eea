"""Properties of the gateways, and of what all Pods share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from tests.acceptance.helm.chart import Object, find, pods
from tests.acceptance.helm.property import Property, at, deployment, environment, gateway, gateway_yaml

POD = "gateway/_pod.tpl"
NAMES = "_names.tpl"


def every_pod(test: Callable[[Object], bool]) -> Callable[[Sequence[Object]], bool]:
    """Whether it holds for the spec of every Pod."""
    return lambda among: all(test(pod["spec"]) for _, pod in pods(among))


def every_container(test: Callable[[Object], bool]) -> Callable[[Sequence[Object]], bool]:
    """Whether it holds for every container of every Pod."""
    return every_pod(lambda spec: all(test(one) for one in spec["containers"]))


def stop_fits(among: Sequence[Object]) -> bool:
    """One value rules: the pause, the drain and 8 s to close connections end before the kubelet kills."""
    relay, grace = gateway_yaml(among)["relay"], at(deployment(among), "template.spec.terminationGracePeriodSeconds")
    pause = at(gateway(among), "lifecycle.preStop.sleep.seconds")
    fits = bool(pause + relay["drain_s"] + 8 <= grace)
    return grace == 300 and fits and relay["drain_s"] >= grace - 20 and 5 <= relay["notice_s"] <= relay["drain_s"]


def no_secret_in_it(among: Sequence[Object]) -> bool:
    """The chart makes no Secret, and the gateway reads passwords and keys from files of Secrets that exist."""
    config = gateway_yaml(among)
    files = (config["redis"]["password_file"], config["keys_file"])
    mounts = {mount["mountPath"] for mount in gateway(among)["volumeMounts"] if "subPath" not in mount}
    made = [one for one in among if one["kind"] == "Secret"]
    return not made and all(file.rpartition("/")[0] in mounts for file in files)


def nothing_versioned(among: Sequence[Object]) -> bool:
    keys = {key for _, pod in pods(among) for key in pod["metadata"]["labels"]}
    return not keys & {"helm.sh/chart", "app.kubernetes.io/version"}


def spread(among: Sequence[Object]) -> bool:
    constraints = at(deployment(among), "template.spec.topologySpreadConstraints")
    keys = {one["topologyKey"] for one in constraints}
    labels = at(deployment(among), "template.metadata.labels")
    selected = all(one["labelSelector"]["matchLabels"].items() <= labels.items() for one in constraints)
    return selected and keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def _scaled(among: Sequence[Object], metric: str) -> bool:
    hpa = find(among, "HorizontalPodAutoscaler")["spec"]
    named = {one["type"]: one for one in hpa["metrics"]}
    if metric == "cpu":
        return bool(at(named["Resource"], "resource.target.averageUtilization") == 60)
    return bool(at(named["Pods"], "pods.metric.name") == metric)


def budget(among: Sequence[Object]) -> bool:
    spec = find(among, "PodDisruptionBudget", "dragoman")["spec"]
    labels = at(deployment(among), "template.metadata.labels")
    return bool(
        spec["maxUnavailable"] == 1
        and spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        and spec["selector"]["matchLabels"].items() <= labels.items()
    )


def own_port(among: Sequence[Object]) -> bool:
    """Metrics are nowhere where clients call."""
    listens = gateway_yaml(among)["metrics"]["listen"].endswith(":9090")
    ports = [port["targetPort"] for port in find(among, "Service", "dragoman")["spec"]["ports"]]
    return listens and ports == ["http"]


def checksum(among: Sequence[Object]) -> bool:
    text = find(among, "ConfigMap", "dragoman")["data"]["gateway.yaml"].rstrip("\n")
    annotated = at(deployment(among), "template.metadata.annotations")["checksum/config"]
    return bool(annotated == hashlib.sha256(text.encode()).hexdigest())


def console(among: Sequence[Object]) -> bool:
    """It asks for a key, which comes from a mounted Secret."""
    given, file = gateway_yaml(among)["console"], "/run/dragoman/console/console.key"
    return given["enabled"] is True and given["key_file"] == file and _mounted(among, file) == "dragoman-console"


def console_login(among: Sequence[Object]) -> bool:
    """The values are those of gateway.yaml; both secrets come from a mounted Secret, the authority from another."""
    given = gateway_yaml(among)["console"]["oidc"]
    files = {given["client_secret_file"], given["session_secret_file"]}
    place, authority = "/run/dragoman/console-oidc/", "/run/dragoman/console-ca/ca.crt"
    whole = files == {f"{place}client_secret", f"{place}session_secret"} and given["roles"]["admin"] == ["ops"]
    trusted = given["ca_file"] == authority and _mounted(among, authority) == "dragoman-login-ca"
    return whole and trusted and {_mounted(among, file) for file in files} == {"dragoman-console-oidc"}


def _mounted(among: Sequence[Object], file: str) -> str:
    """The Secret in whose folder the gateway's file is."""
    mounts = {mount["mountPath"]: mount["name"] for mount in gateway(among)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in at(deployment(among), "template.spec.volumes")}
    return str(at(volumes[mounts[file.rpartition("/")[0]]], "secret.secretName"))


ALL = (
    Property(
        "a gateway that starts late is not killed for it",
        "minimal",
        lambda among: (
            (probe := gateway(among)["startupProbe"])["httpGet"] == {"path": "/livez", "port": "metrics"}
            and probe["periodSeconds"] * probe["failureThreshold"] == 180
        ),
        ((POD, "failureThreshold: 90", "failureThreshold: 1"),),
    ),
    Property(
        "gateways scale by CPU",
        "autoscaled",
        lambda among: _scaled(among, "cpu"),
        (("gateway/hpa.yaml", "averageUtilization: {{ $scaling.cpuPercent }}", "averageUtilization: 99"),),
    ),
    Property(
        "gateways scale by requests in flight where an adapter has them",
        "everything",
        lambda among: _scaled(among, "dragoman_requests_running"),
        (("gateway/hpa.yaml", "{{- if $scaling.requestsInFlight }}", "{{- if false }}"),),
    ),
    Property(
        "no Pod runs as root",
        "everything",
        every_pod(lambda spec: spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0),
        (
            (NAMES, "runAsNonRoot: true", "runAsNonRoot: false"),
            (NAMES, "runAsUser: 65532", "runAsUser: 0"),
        ),
    ),
    Property(
        "users are left to a platform that assigns them",
        "openshift",
        every_pod(lambda spec: {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(spec["securityContext"])),
        ((NAMES, "{{- if not .root.Values.podSecurity.assignedIds }}", "{{- if true }}"),),
    ),
    Property(
        "every Pod has the runtime's seccomp profile",
        "multi-node",
        every_pod(lambda spec: spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}),
        ((NAMES, "type: RuntimeDefault", "type: Unconfined"),),
    ),
    Property(
        "no container can write to its image",
        "multi-node",
        every_container(lambda one: bool(one["securityContext"]["readOnlyRootFilesystem"])),
        ((NAMES, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),),
    ),
    Property(
        "gateways and workers can write to /tmp",
        "multi-node",
        every_container(
            lambda one: one["name"] == "valkey" or "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}
        ),
        (
            (POD, "mountPath: /tmp", "mountPath: /scratch"),
            ("_worker.tpl", "mountPath: /tmp", "mountPath: /scratch"),
        ),
    ),
    Property(
        "no container has capabilities or gets more",
        "multi-node",
        every_container(
            lambda one: (
                one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                and one["securityContext"]["allowPrivilegeEscalation"] is False
            )
        ),
        (
            (NAMES, "drop: [ALL]", "drop: [NET_RAW]"),
            (NAMES, "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true"),
        ),
    ),
    Property(
        "no Pod has a token of Kubernetes",
        "multi-node",
        every_pod(lambda spec: spec["automountServiceAccountToken"] is False),
        ((NAMES, "automountServiceAccountToken: false", "automountServiceAccountToken: true"),),
    ),
    Property(
        "no Pod gets variables of Services, which the gateway would refuse",
        "multi-node",
        every_pod(lambda spec: spec["enableServiceLinks"] is False),
        ((NAMES, "enableServiceLinks: false", "enableServiceLinks: true"),),
    ),
    Property(
        "Valkey's password stands in no argument and no variable",
        "minimal",
        lambda among: (
            "printf 'requirepass" in find(among, "ConfigMap", "dragoman-valkey")["data"]["start.sh"]
            and at(find(among, "StatefulSet", "dragoman-valkey"), "spec.template.spec.containers.0.command")
            == ["sh", "/etc/valkey/start.sh"]
            and not environment(at(find(among, "StatefulSet", "dragoman-valkey"), "spec.template.spec.containers.0"))
        ),
        (("valkey.yaml", "printf 'requirepass", "printf '#requirepass"),),
    ),
    Property(
        "Valkey throws no counter away in silence",
        "minimal",
        lambda among: (
            "maxmemory-policy noeviction" in find(among, "ConfigMap", "dragoman-valkey")["data"]["valkey.conf"]
        ),
        (("valkey.yaml", "maxmemory-policy noeviction", "maxmemory-policy allkeys-lru"),),
    ),
)
