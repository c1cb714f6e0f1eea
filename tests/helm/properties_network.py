"""Properties of who may reach whom, of the ways in, of monitoring and of `helm test`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.dialects import REGISTRY
from tests.helm.chart import Object, container, find, pods
from tests.helm.property import Property, at, environment

POLICY = "networkpolicy.yaml"
PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
QWEN = "dragoman-qwen3-8b"


def _policy(among: Sequence[Object], name: str) -> Object:
    spec: Object = find(among, "NetworkPolicy", name)["spec"]
    return spec


def _covers(policy: Object, labels: dict[str, str]) -> bool:
    return bool(policy["podSelector"]["matchLabels"].items() <= labels.items())


def _every_pod_is_fenced(among: Sequence[Object]) -> bool:
    """Each Pod is selected by one policy, which speaks of both directions: what it does not allow is forbidden."""
    policies = [one["spec"] for one in among if one["kind"] == "NetworkPolicy"]
    both = all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies)
    found = [[policy for policy in policies if _covers(policy, pod["metadata"]["labels"])] for _, pod in pods(among)]
    return both and all(len(one) == 1 for one in found)


def _from(policy: Object, port: Any) -> list[Any]:
    """The peers that reach a port; [None] for everybody."""
    rules = [rule for rule in policy["ingress"] if {"port": port} in rule.get("ports", [{"port": port}])]
    return [peer for rule in rules for peer in rule.get("from", [None])]


def _components(peers: Sequence[Any]) -> list[str]:
    return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers]


def _to(policy: Object, port: int) -> list[Any]:
    """The peers to which a port is open; [None] for everybody."""
    rules = [rule for rule in policy["egress"] if port in [one["port"] for one in rule.get("ports", [])]]
    return [peer for rule in rules for peer in rule.get("to", [None])]


def _services(among: Sequence[Object]) -> bool:
    """A policy sees the port of a Pod: each in the Service's namespace, unless the values name those that there are."""
    rules = _policy(among, "dragoman")["egress"]
    narrow = [{"podSelector": {"matchLabels": {"app": "tgi"}}, "namespaceSelector": {}}]
    return (
        {"to": [{"podSelector": {}}]} in rules
        and _to(_policy(among, "dragoman"), 3000) == narrow
        and {"to": narrow} not in rules
    )


def _dns(among: Sequence[Object]) -> bool:
    ports = [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]
    names = ("dragoman", QWEN, "dragoman-completions")
    return all(
        [rule for rule in _policy(among, name)["egress"] if rule["ports"] == ports and "to" in rule] for name in names
    )


def _paths(among: Sequence[Object]) -> dict[str, list[str]]:
    """Host -> paths of the Ingress."""
    rules = at(find(among, "Ingress"), "spec.rules")
    return {rule["host"]: [one["path"] for one in rule["http"]["paths"]] for rule in rules}


def _nginx(among: Sequence[Object]) -> bool:
    annotations = at(find(among, "Ingress"), "metadata.annotations")
    prefix = "nginx.ingress.kubernetes.io/"
    return bool(
        annotations[f"{prefix}proxy-buffering"] == "off"
        and annotations[f"{prefix}proxy-request-buffering"] == "off"
        and annotations[f"{prefix}proxy-read-timeout"] == annotations[f"{prefix}proxy-send-timeout"] == "3600"
        and annotations[f"{prefix}proxy-next-upstream"] == "error"
    )


def _rules(among: Sequence[Object]) -> bool:
    """The files of alerts/ as they are."""
    groups = at(find(among, "PrometheusRule"), "spec.groups")
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    return (
        "DragomanGatewayDown" in alerts and at(find(among, "PrometheusRule"), "metadata.labels.release") == "prometheus"
    )


def _tests_every_dialect(among: Sequence[Object]) -> bool:
    pod = find(among, "Pod")
    one = at(pod, "spec.containers.0")
    variables = environment(one)
    return (
        pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        and pod["spec"]["restartPolicy"] == "Never"
        and one["image"] == container(among, "Deployment", "dragoman")["image"]
        and set(variables["DIALECTS"].split(",")) == set(REGISTRY) - {"ollama", "friendli"}
        and variables["PREFIXES"] == '{"azure":"/foundry"}'
        and variables["MODEL"] == "qwen3-8b"
        and variables["KEY"] == {"secretKeyRef": {"name": "dragoman-test-key", "key": "key"}}
        and "def main()" in find(among, "ConfigMap", "dragoman-completions")["data"]["completions.py"]
        and "openai" in find(among, "ConfigMap", "dragoman-completions")["data"]["dialects.json"]
    )


ALL = (
    Property(
        "policies are on by default and fence every Pod in both directions",
        "minimal",
        _every_pod_is_fenced,
        (
            (POLICY, "{{- if .Values.networkPolicy.enabled }}", "{{- if false }}"),
            (POLICY, '{{- if eq .Values.redis.mode "valkey" }}', "{{- if false }}"),
            (POLICY, "{{- if .Values.test.enabled }}", "{{- if false }}"),
        ),
    ),
    Property(
        "clients reach the gateway's own port, and the test does",
        "everything",
        lambda among: (
            at(_from(_policy(among, "dragoman"), "http"), "0.namespaceSelector.matchLabels")
            == {"kubernetes.io/metadata.name": "ingress-nginx"}
            and _components(_from(_policy(among, "dragoman"), "http")[1:]) == ["test"]
        ),
        ((POLICY, "{{- with $policy.clients }}", "{{- with false }}"), (POLICY, "append . $tests", ".")),
    ),
    Property(
        "Prometheus reaches the metrics port, and nobody else does",
        "minimal",
        lambda among: _from(_policy(among, "dragoman"), "metrics") == PROMETHEUS,
        ((POLICY, "- port: metrics\n      from:", "- port: metrics\n      froms:"),),
    ),
    Property(
        "the gateway reaches workers and Redis",
        "minimal",
        lambda among: (
            _components(_to(_policy(among, "dragoman"), 8000)) == ["worker"]
            and _components(_to(_policy(among, "dragoman"), 6379)) == ["valkey"]
            and None not in _to(_policy(among, "dragoman"), 443)
        ),
        (
            (POLICY, "- to:\n        - {{ toYaml $workers | nindent 10 | trim }}\n      ports:", "- ports:"),
            (POLICY, '{{- with include "dragoman.redisEgress" . | trim }}', "{{- with false }}"),
        ),
    ),
    Property(
        "gateways alone reach workers",
        "minimal",
        lambda among: _components(_from(_policy(among, QWEN), 8000)) == ["gateway"],
        ((POLICY, "# Gateways alone reach workers.\n    - from:", "# Gateways alone reach workers.\n    - no:"),),
    ),
    Property(
        "gateways and workers alone reach Redis, which reaches nobody",
        "minimal",
        lambda among: (
            _components(_from(_policy(among, "dragoman-valkey"), "redis")) == ["gateway", "worker"]
            and _policy(among, "dragoman-valkey")["egress"] == []
        ),
        (
            (
                POLICY,
                "- {{ toYaml $workers | nindent 10 | trim }}\n      ports:\n        - port: redis",
                "- podSelector: {}\n      ports:\n        - port: redis",
            ),
            (POLICY, "egress: []", "egress: [{}]"),
        ),
    ),
    Property(
        "Pods reach DNS, where and on which port it is",
        "openshift",
        _dns,
        (
            ("_network.tpl", "{port: {{ . }}, protocol: TCP}", "{port: {{ . }}, protocol: UDP}"),
            ("_network.tpl", "{{- with .Values.networkPolicy.dnsTo }}", "{{- with false }}"),
        ),
    ),
    Property(
        "workers load from a hub only where they may",
        "minimal",
        lambda among: _to(_policy(among, QWEN), 443) == [None],
        ((POLICY, "- port: 443", "- port: 80"),),
    ),
    Property(
        "without a hub no worker reaches one",
        "air-gapped",
        lambda among: not any(_to(one["spec"], 443) for one in among if one["kind"] == "NetworkPolicy"),
        ((POLICY, "(not $model.loadsNothing)", "true"),),
    ),
    Property(
        "nodes of a group reach each other",
        "multi-node",
        lambda among: (
            {"worker"} == set(_components(_from(_policy(among, "dragoman-large"), 29500)))
            and _components(_policy(among, "dragoman-large")["egress"][-1]["to"]) == ["worker"]
        ),
        (
            (POLICY, "# Nodes of a group to each other, on ports of their own choice.\n    - from:", "- no:"),
            (POLICY, "{{- if gt (int $model.nodes) 1 }}\n    - to:", "{{- if false }}\n    - to:"),
        ),
    ),
    Property(
        "the gateway reaches workers elsewhere, on their ports and addresses",
        "everything",
        lambda among: (
            {"ipBlock": {"cidr": "198.51.100.0/24"}} in _to(_policy(among, "dragoman"), 443)
            and _to(_policy(among, "dragoman"), 8080) == [None]
            and _to(_policy(among, "dragoman"), 8443) == [None]
        ),
        (
            ("_network.tpl", "{{- with .to }}", "{{- with false }}"),
            (POLICY, "{{- if $urls }}", "{{- if false }}"),
            (POLICY, '{{- with dig "jwks_url"', '{{- with dig "other"'),
        ),
    ),
    Property(
        "the gateway reaches prefill workers",
        "gateway-alone",
        lambda among: _to(_policy(among, "dragoman"), 8007) == [None],
        ((POLICY, '(dig "prefill" "workers" list $model.gateway)', "list"),),
    ),
    Property(
        "the gateway hears what workers elsewhere have cached",
        "gateway-alone",
        lambda among: _to(_policy(among, "dragoman"), 5557) == _to(_policy(among, "dragoman"), 5658) == [None],
        (
            (POLICY, '{{- with include "dragoman.kvPorts" $model | fromJsonArray }}', "{{- with false }}"),
            ("_models.tpl", "default 5557 $events.port", "$events.port"),
        ),
    ),
    Property(
        "the gateway hears what workers of the chart have cached",
        "several-models",
        lambda among: all(
            _components(_to(_policy(among, "dragoman"), port)) == ["worker"]
            and _components(_from(_policy(among, "dragoman-gpt-4-1"), port)) == ["gateway"]
            for port in (5557, 5558)
        ),
        (
            (POLICY, "{{- range uniq $telling }}", "{{- range list }}"),
            (
                POLICY,
                '- port: 8000\n        {{- range include "dragoman.kvPorts" $model',
                '- port: 8000\n        {{- range include "dragoman.kvPorts" (dict "gateway" dict)',
            ),
            ("_models.tpl", "$events.port) $events.replay_port", "$events.port)"),
        ),
    ),
    Property(
        "the gateway reaches the collector of traces",
        "everything",
        lambda among: _to(_policy(among, "dragoman"), 4318) == [None],
        ((POLICY, '{{- with dig "endpoint"', '{{- with dig "other"'),),
    ),
    Property(
        "an external Redis is reached on its port and address",
        "external-redis",
        lambda among: (
            _to(_policy(among, "dragoman"), 6380)
            == _to(_policy(among, QWEN), 6380)
            == [{"ipBlock": {"cidr": "203.0.113.0/28"}}]
        ),
        (
            ("_network.tpl", "{{- with .Values.redis.external.egressTo }}", "{{- with false }}"),
            (POLICY, "{{- if $model.registers }}", "{{- if false }}"),
        ),
    ),
    Property(
        "what Sentinels and nodes name is reached, on the ports of their own",
        "sentinels",
        lambda among: _to(_policy(among, "dragoman"), 26379) == _to(_policy(among, "dragoman"), 6379) == [None],
        (("_network.tpl", '(list "6379") list', "list list"),),
    ),
    Property(
        "nodes of a cluster are reached on the ports that the values name",
        "hatches",
        lambda among: (
            _to(_policy(among, "dragoman"), 6380) == _to(_policy(among, "dragoman"), 6390) == [None]
            and _to(_policy(among, "dragoman"), 6379) == []
        ),
        (("_network.tpl", "concat $external.addresses $external.dataPorts", "$external.addresses"),),
    ),
    Property(
        "a Service at `urls` is reached, whatever ports its Pods have",
        "hatches",
        _services,
        (
            ("_network.tpl", "{{- $open := and (empty .ports) $spaces }}", "{{- $open := false }}"),
            ("_network.tpl", "{{- $ports := .ports -}}{{- $spaces", "{{- $ports := list -}}{{- $spaces"),
        ),
    ),
    Property(
        "an Ingress keeps streams whole",
        "everything",
        _nginx,
        (
            ("ingress.yaml", '/proxy-buffering" "off"', '/proxy-buffering" "on"'),
            ("ingress.yaml", '/proxy-request-buffering" "off"', '/proxy-request-buffering" "on"'),
            ("ingress.yaml", '/proxy-read-timeout" (toString $seconds)', '/proxy-read-timeout" "60"'),
            ("ingress.yaml", '/proxy-send-timeout" (toString $seconds)', '/proxy-send-timeout" "60"'),
            ("ingress.yaml", '/proxy-next-upstream" "error"', '/proxy-next-upstream" "error timeout"'),
        ),
    ),
    Property(
        "HAProxy waits for streams",
        "openshift",
        lambda among: at(find(among, "Ingress"), "metadata.annotations")["haproxy.org/timeout-server"] == "3600s",
        (("ingress.yaml", '"haproxy.org/timeout-server"', '"haproxy.org/timeout-tunnel"'),),
    ),
    Property(
        "a host may serve some dialects, under their own paths",
        "everything",
        lambda among: (
            _paths(among)
            == {
                "llm.example": ["/"],
                "openai.example": ["/v1", "/openai"],
                "cloud.example": ["/foundry", "/sagemaker", "/invocations", "/ping"],
            }
        ),
        (
            ("_paths.tpl", "default $one.prefixes $options.prefixes", "$one.prefixes"),
            ("_paths.tpl", "concat $found $one.fixed", "$found"),
        ),
    ),
    Property(
        "an HTTPRoute waits for streams and carries the dialects of its host",
        "everything",
        lambda among: (
            at(find(among, "HTTPRoute", "dragoman-0"), "spec.rules.0.timeouts")
            == {"request": "3600s", "backendRequest": "3600s"}
            and [one["path"]["value"] for one in at(find(among, "HTTPRoute", "dragoman-1"), "spec.rules.0.matches")]
            == ["/v1", "/openai"]
        ),
        (
            ("httproute.yaml", "backendRequest: {{ $.Values.streamTimeoutSeconds }}s", ""),
            ("httproute.yaml", '(dict "root" $ "dialects" $host.dialects)', '(dict "root" $)'),
        ),
    ),
    Property(
        "Prometheus scrapes gateways",
        "everything",
        lambda among: (
            at(find(among, "ServiceMonitor"), "spec.selector.matchLabels").items()
            <= find(among, "Service", "dragoman-metrics")["metadata"]["labels"].items()
            and at(find(among, "ServiceMonitor"), "spec.endpoints.0.port") == "metrics"
            and at(find(among, "ServiceMonitor"), "metadata.labels.release") == "prometheus"
        ),
        (
            (
                "monitoring/servicemonitor.yaml",
                "{{- if .Values.monitoring.serviceMonitor.enabled }}",
                "{{- if false }}",
            ),
            ("monitoring/servicemonitor.yaml", "- port: metrics", "- port: http"),
        ),
    ),
    Property(
        "Prometheus scrapes workers that answer, where they let it in",
        "autoscaled",
        lambda among: (
            at(find(among, "PodMonitor"), "spec.selector.matchLabels")["dragoman-role"] == "leader"
            and PROMETHEUS[0] in _from(_policy(among, "dragoman-busy"), 8000)
        ),
        (
            ("monitoring/podmonitor.yaml", "dragoman-role: leader", ""),
            (POLICY, "# vLLM serves its figures where it serves requests.\n    - from:", "- no:"),
        ),
    ),
    Property(
        "alerts come with the chart",
        "everything",
        _rules,
        (("monitoring/prometheusrule.yaml", '"alerts/*.yaml"', '"alert/*.yaml"'),),
    ),
    Property(
        "`helm test` asks every enabled dialect with the gateway's own image",
        "everything",
        _tests_every_dialect,
        (
            ("tests/completions.yaml", 'if ne (toString $options.enabled) "false"', "if true"),
            ("tests/completions.yaml", "value: {{ toJson $prefixes | quote }}", 'value: "{}"'),
            ("tests/completions.yaml", '.Files.Get "files/completions.py"', '"pass"'),
            ("tests/completions.yaml", "- name: KEY", "- name: API_KEY"),
        ),
    ),
)
