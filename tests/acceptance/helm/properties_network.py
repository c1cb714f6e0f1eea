"""Properties of who may reach whom, of the ways in, of monitoring and of `helm test`."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dialects import REGISTRY
from tests.acceptance.helm.chart import Object, container, find, pods
from tests.acceptance.helm.property import Property, at, components, environment, open_to, policy, reached_from

POLICY = "networkpolicy.yaml"
QWEN = "dragoman-qwen3-8b"


def _covers(policy: Object, labels: dict[str, str]) -> bool:
    return bool(policy["podSelector"]["matchLabels"].items() <= labels.items())


def every_pod_is_fenced(among: Sequence[Object]) -> bool:
    """Each Pod is selected by one policy, which speaks of both directions: what it does not allow is forbidden."""
    policies = [one["spec"] for one in among if one["kind"] == "NetworkPolicy"]
    both = all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies)
    found = [[policy for policy in policies if _covers(policy, pod["metadata"]["labels"])] for _, pod in pods(among)]
    return both and all(len(one) == 1 for one in found)


def web(among: Sequence[Object]) -> bool:
    """The gateway reaches its search service, public addresses of the web, and the networks that it may fetch from."""
    pages = open_to(policy(among, "dragoman"), 80)
    kept = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.20.0.0/16", "192.0.2.7/32", "fd00::/8")]
    return (
        open_to(policy(among, "dragoman"), 8888) == [None]
        and pages == open_to(policy(among, "dragoman"), 443)[-2:]
        and {"10.0.0.0/8", "169.254.0.0/16"} < set(pages[0]["ipBlock"]["except"])
        and pages[1:] == [{"ipBlock": {"cidr": "2000::/3"}}]
        and {"to": kept} in policy(among, "dragoman")["egress"]
    )


def services(among: Sequence[Object]) -> bool:
    """A policy sees the port of a Pod: each in the Service's namespace, unless the values name those that there are."""
    rules = policy(among, "dragoman")["egress"]
    narrow = [{"podSelector": {"matchLabels": {"app": "tgi"}}, "namespaceSelector": {}}]
    return (
        {"to": [{"podSelector": {}}]} in rules
        and open_to(policy(among, "dragoman"), 3000) == narrow
        and {"to": narrow} not in rules
    )


def dns(among: Sequence[Object]) -> bool:
    ports = [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]
    names = ("dragoman", QWEN, "dragoman-completions")
    return all(
        [rule for rule in policy(among, name)["egress"] if rule["ports"] == ports and "to" in rule] for name in names
    )


def _paths(among: Sequence[Object]) -> dict[str, list[str]]:
    """Host -> paths of the Ingress."""
    rules = at(find(among, "Ingress"), "spec.rules")
    return {rule["host"]: [one["path"] for one in rule["http"]["paths"]] for rule in rules}


def nginx(among: Sequence[Object]) -> bool:
    annotations = at(find(among, "Ingress"), "metadata.annotations")
    prefix = "nginx.ingress.kubernetes.io/"
    return bool(
        annotations[f"{prefix}proxy-buffering"] == "off"
        and annotations[f"{prefix}proxy-request-buffering"] == "off"
        and annotations[f"{prefix}proxy-read-timeout"] == annotations[f"{prefix}proxy-send-timeout"] == "3600"
        and annotations[f"{prefix}proxy-next-upstream"] == "error"
    )


def rules(among: Sequence[Object]) -> bool:
    """The files of alerts/ as they are."""
    groups = at(find(among, "PrometheusRule"), "spec.groups")
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    return (
        "DragomanGatewayDown" in alerts and at(find(among, "PrometheusRule"), "metadata.labels.release") == "prometheus"
    )


def tests_every_dialect(among: Sequence[Object]) -> bool:
    pod = find(among, "Pod")
    one = at(pod, "spec.containers.0")
    variables = environment(one)
    return (
        pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        and pod["spec"]["restartPolicy"] == "Never"
        and one["image"] == container(among, "Deployment", "dragoman")["image"]
        and set(variables["DIALECTS"].split(",")) == set(REGISTRY) - {"ollama_style", "friendli"}
        and variables["PREFIXES"] == '{"azure_inference":"/foundry"}'
        and variables["MODEL"] == "qwen3-8b"
        and variables["KEY"] == {"secretKeyRef": {"name": "dragoman-test-key", "key": "key"}}
        and "def main()" in find(among, "ConfigMap", "dragoman-completions")["data"]["completions.py"]
        and "openai" in find(among, "ConfigMap", "dragoman-completions")["data"]["dialects.json"]
    )


ALL = (
    Property(
        "clients reach the gateway's own port, and the test does",
        "everything",
        lambda among: (
            at(reached_from(policy(among, "dragoman"), "http"), "0.namespaceSelector.matchLabels")
            == {"kubernetes.io/metadata.name": "ingress-nginx"}
            and components(reached_from(policy(among, "dragoman"), "http")[1:]) == ["test"]
        ),
        ((POLICY, "{{- with $policy.clients }}", "{{- with false }}"), (POLICY, "append . $tests", ".")),
    ),
    Property(
        "the gateway reaches a search service and the web",
        "everything",
        web,
        (
            (POLICY, '(dig "web_search"', '(dig "other"'),
            (POLICY, '{{- if hasKey $tools "web_fetch" }}', "{{- if false }}"),
            (POLICY, '{{- with dig "allow_networks"', '{{- with dig "other"'),
        ),
    ),
    Property(
        "without a hub no worker reaches one",
        "air-gapped",
        lambda among: not any(open_to(one["spec"], 443) for one in among if one["kind"] == "NetworkPolicy"),
        ((POLICY, "(not $model.loadsNothing)", "true"),),
    ),
    Property(
        "nodes of a group reach each other",
        "multi-node",
        lambda among: (
            {"worker"} == set(components(reached_from(policy(among, "dragoman-large"), 29500)))
            and components(policy(among, "dragoman-large")["egress"][-1]["to"]) == ["worker"]
        ),
        (
            (POLICY, "# Nodes of a group to each other, on ports of their own choice.\n    - from:", "- no:"),
            (POLICY, "{{- if gt (int $model.nodes) 1 }}\n    - to:", "{{- if false }}\n    - to:"),
        ),
    ),
    Property(
        "the gateway hears what workers of the chart have cached",
        "several-models",
        lambda among: all(
            components(open_to(policy(among, "dragoman"), port)) == ["worker"]
            and components(reached_from(policy(among, "dragoman-gpt-4-1"), port)) == ["gateway"]
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
)
