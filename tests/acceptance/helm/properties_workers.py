"""Properties of the workers of one model, each on one machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.acceptance.helm.chart import Object, container, find
from tests.acceptance.helm.property import Property, at, deployment, environment, flags, gateway_yaml, volume

WORKER = "_worker.tpl"
QWEN = "dragoman-qwen3-8b"


def _mount(among: Sequence[Object], name: str, volume: str = "cache") -> Object:
    (only,) = [mount for mount in container(among, "Deployment", name)["volumeMounts"] if mount["name"] == volume]
    return dict(only)


def load(among: Sequence[Object]) -> bool:
    """The probe waits for as long as the worker waits for its engine, and the roll-out for longer."""
    probe = container(among, "Deployment", QWEN)["startupProbe"]
    waits = probe["failureThreshold"] * probe["periodSeconds"]
    said = int(flags(among, "Deployment", QWEN)["--start-timeout"])
    return said == 905 and 905 <= waits <= 915 and deployment(among, QWEN)["progressDeadlineSeconds"] > waits


def drain(among: Sequence[Object]) -> bool:
    """The worker's grace ends 30 s and its preStop pause before the kubelet kills, as docs/workers.md asks."""
    grace = at(deployment(among, QWEN), "template.spec.terminationGracePeriodSeconds")
    given = int(flags(among, "Deployment", QWEN)["--grace"])
    return bool(grace == 600 and grace - 60 <= given <= grace - 40)


def registers(among: Sequence[Object]) -> bool:
    given, spec = flags(among, "Deployment", QWEN), at(deployment(among, QWEN), "template.spec")
    return (
        given["--register"] == "rediss://worker@redis.example:6380/2"
        and given["--redis-password-file"] == "/run/dragoman/redis/password"
        and given["--redis-ca-file"] == "/run/dragoman/redis-ca/ca.crt"
        and {"name": "redis", "secret": {"secretName": "redis-worker"}} in spec["volumes"]
        and gateway_yaml(among)["models"]["qwen3-8b"]["discover"] == {"redis": True}
    )


def found_by_dns(among: Sequence[Object]) -> bool:
    service = find(among, "Service", QWEN)["spec"]
    labels = at(deployment(among, QWEN), "template.metadata.labels")
    selected = bool(service["selector"].items() <= labels.items())
    named = bool(gateway_yaml(among)["models"]["qwen3-8b"]["discover"] == {"dns": f"{QWEN}:8000"})
    return selected and named and bool(service["clusterIP"] == "None")


def told_and_heard(among: Sequence[Object]) -> bool:
    """Engines publish on the ports where gateways listen, and keep as many batches as is said."""
    published = json.loads(flags(among, "Deployment", "dragoman-gpt-4-1")["--kv-events-config"])
    heard = gateway_yaml(among)["models"]["gpt-4.1"]["kv_events"]
    return bool(
        published
        == {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{heard['port']}",
            "replay_endpoint": f"tcp://*:{heard['replay_port']}",
            "buffer_steps": 20_000,
        }
        and "kv_events" not in gateway_yaml(among)["models"]["embed"]
        and "--kv-events-config" not in flags(among, "Deployment", "dragoman-embed")
    )


ALL = (
    Property(
        "no worker is the first that a full node evicts",
        "several-models",
        lambda among: all(
            container(among, "Deployment", f"dragoman-{name}")["resources"]["requests"] == {"cpu": "2", "memory": "8Gi"}
            for name in ("gpt-4-1", "embed", "qwen-qwen3-8b")
        ),
        ((WORKER, "{{- with $requests -}}", "{{- with false -}}"),),
    ),
    Property(
        "/dev/shm is memory of its own size",
        "minimal",
        lambda among: (
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
            in at(deployment(among, QWEN), "template.spec.volumes")
            and _mount(among, QWEN, "shm")["mountPath"] == "/dev/shm"
        ),
        ((WORKER, "medium: Memory", ""), (WORKER, "mountPath: /dev/shm", "mountPath: /shm")),
    ),
    Property(
        "a worker's probes ask its engine, and nothing that it depends on",
        "minimal",
        lambda among: (
            {
                container(among, "Deployment", QWEN)[probe]["httpGet"]["path"]
                for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            }
            == {"/health"}
            and at(container(among, "Deployment", QWEN), "livenessProbe.failureThreshold") >= 8
        ),
        ((WORKER, "timeoutSeconds: 15\n  failureThreshold: 8", "timeoutSeconds: 15\n  failureThreshold: 1"),),
    ),
    Property(
        "weights in an image volume, read-only",
        "air-gapped",
        lambda among: (
            volume(among, "dragoman-from-image")["image"]["reference"] == "registry.internal/weights/qwen3-8b:1"
            and _mount(among, "dragoman-from-image")["readOnly"]
            and _mount(among, "dragoman-from-claim")["readOnly"]
        ),
        (
            (WORKER, "reference: {{ $cache.image }}", "reference: other"),
            (WORKER, '{{- if or .model.cache.readOnly (eq .model.cache.mode "image") }}', "{{- if false }}"),
        ),
    ),
    Property(
        "caches are written where that is possible",
        "air-gapped",
        lambda among: (
            [
                environment(container(among, "Deployment", f"dragoman-from-{where}")).get("HF_HOME")
                for where in ("image", "claim", "node")
            ]
            == [None, None, "/models/huggingface"]
        ),
        ((WORKER, "{{- if $written }}", "{{- if true }}"),),
    ),
)
