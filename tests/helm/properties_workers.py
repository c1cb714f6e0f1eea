"""Properties of the workers of one model, each on one machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.helm.chart import Object, container, find
from tests.helm.property import Property, at, deployment, environment, flags, gateway_yaml

WORKER = "_worker.tpl"
WORKLOAD = "models/workload.yaml"
QWEN = "dragoman-qwen3-8b"


def _volume(among: Sequence[Object], name: str, kind: str = "Deployment") -> Object:
    """The volume with the weights of a model's Pods, without its name."""
    volumes = at(find(among, kind, name), "spec.template.spec.volumes")
    found: Object = next((volume for volume in volumes if volume["name"] == "cache"), {})
    return {key: value for key, value in found.items() if key != "name"}


def _mount(among: Sequence[Object], name: str, volume: str = "cache") -> Object:
    (only,) = [mount for mount in container(among, "Deployment", name)["volumeMounts"] if mount["name"] == volume]
    return dict(only)


def _load(among: Sequence[Object]) -> bool:
    """The probe waits for as long as the worker waits for its engine, and the roll-out for longer."""
    probe = container(among, "Deployment", QWEN)["startupProbe"]
    waits = probe["failureThreshold"] * probe["periodSeconds"]
    said = int(flags(among, "Deployment", QWEN)["--start-timeout"])
    return said == 905 and 905 <= waits <= 915 and deployment(among, QWEN)["progressDeadlineSeconds"] > waits


def _drain(among: Sequence[Object]) -> bool:
    """The worker's grace ends 30 s and its preStop pause before the kubelet kills, as docs/workers.md asks."""
    grace = at(deployment(among, QWEN), "template.spec.terminationGracePeriodSeconds")
    given = int(flags(among, "Deployment", QWEN)["--grace"])
    return bool(grace == 600 and grace - 60 <= given <= grace - 40)


def _registers(among: Sequence[Object]) -> bool:
    given, spec = flags(among, "Deployment", QWEN), at(deployment(among, QWEN), "template.spec")
    return (
        given["--register"] == "rediss://worker@redis.example:6380/2"
        and given["--redis-password-file"] == "/run/dragoman/redis/password"
        and given["--redis-ca-file"] == "/run/dragoman/redis-ca/ca.crt"
        and {"name": "redis", "secret": {"secretName": "redis-worker"}} in spec["volumes"]
        and gateway_yaml(among)["models"]["qwen3-8b"]["discover"] == {"redis": True}
    )


def _found_by_dns(among: Sequence[Object]) -> bool:
    service = find(among, "Service", QWEN)["spec"]
    labels = at(deployment(among, QWEN), "template.metadata.labels")
    selected = bool(service["selector"].items() <= labels.items())
    named = bool(gateway_yaml(among)["models"]["qwen3-8b"]["discover"] == {"dns": f"{QWEN}:8000"})
    return selected and named and bool(service["clusterIP"] == "None")


def _told_and_heard(among: Sequence[Object]) -> bool:
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
        "a worker is `dragoman worker vllm` with the model under the name that clients use",
        "several-models",
        lambda among: (
            container(among, "Deployment", "dragoman-gpt-4-1")["command"] == ["dragoman", "worker", "vllm"]
            and flags(among, "Deployment", "dragoman-gpt-4-1")["--model"] == "openai/gpt-oss-20b"
            and flags(among, "Deployment", "dragoman-gpt-4-1")["--served-model-name"] == "gpt-4.1"
        ),
        (
            (WORKER, "command: [dragoman, worker, {{ $model.engine }}]", "command: [vllm, serve]"),
            (WORKER, 'list "--served-model-name" .name', "list"),
        ),
    ),
    Property(
        "workers ask for GPUs and tolerate their taint",
        "minimal",
        lambda among: (
            container(among, "Deployment", QWEN)["resources"]["limits"] == {"nvidia.com/gpu": 1}
            and at(deployment(among, QWEN), "template.spec.tolerations.0.key") == "nvidia.com/gpu"
        ),
        (
            (WORKER, "(dict .model.gpuResource (int .model.gpus))", "dict"),
            (WORKER, 'set $own "tolerations"', 'set $own "tolerated"'),
        ),
    ),
    Property(
        "vLLM is told of all GPUs of a Pod",
        "autoscaled",
        lambda among: flags(among, "Deployment", "dragoman-seldom")["--tensor-parallel-size"] == "2",
        ((WORKER, "{{- if gt (int $model.gpus) 1 -}}", "{{- if false -}}"),),
    ),
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
        "a limit alone is the request, too",
        "hatches",
        lambda among: (
            at(deployment(among, "dragoman-one"), "template.spec.containers.0.resources.requests") == {"cpu": "2"}
        ),
        ((WORKER, "{{- if not (hasKey (default dict $resources.limits) $name) -}}", "{{- if true -}}"),),
    ),
    Property(
        "workers run under a runtime class",
        "everything",
        lambda among: at(deployment(among, QWEN), "template.spec.runtimeClassName") == "nvidia",
        (("_pod.tpl", '"runtimeClassName" ', ""),),
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
        "startup probe, start timeout and progress deadline follow from loadTimeout",
        "everything",
        _load,
        (
            (WORKER, "{{ div (add (int $model.loadTimeout) 9) 10 }}", "60"),
            (WORKER, '"--start-timeout" (toString $model.loadTimeout)', '"--start-timeout" "600"'),
            (WORKLOAD, "progressDeadlineSeconds: {{ add (int $model.loadTimeout) 300 }}", ""),
        ),
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
        "weights in an emptyDir, with a limit",
        "minimal",
        lambda among: _volume(among, QWEN) == {"emptyDir": {"sizeLimit": "100Gi"}},
        ((WORKER, "sizeLimit: {{ $cache.size }}", ""),),
    ),
    Property(
        "weights on one claim, which stays when the release goes",
        "everything",
        lambda among: (
            _volume(among, QWEN) == {"persistentVolumeClaim": {"claimName": f"{QWEN}-cache"}}
            and at(find(among, "PersistentVolumeClaim"), "metadata.annotations") == {"helm.sh/resource-policy": "keep"}
            and at(find(among, "PersistentVolumeClaim"), "spec.accessModes") == ["ReadWriteMany"]
        ),
        (
            (WORKER, '{{- else if eq $cache.mode "pvc" }}', '{{- else if eq $cache.mode "none" }}'),
            ("models/service.yaml", "helm.sh/resource-policy: keep", "note: none"),
        ),
    ),
    Property(
        "weights on a claim for each copy",
        "openshift",
        lambda among: (
            at(find(among, "StatefulSet", QWEN), "spec.volumeClaimTemplates.0.spec.resources.requests.storage")
            == "50Gi"
        ),
        ((WORKLOAD, "  {{- if $stateful }}\n  volumeClaimTemplates:", "  {{- if false }}\n  volumeClaimTemplates:"),),
    ),
    Property(
        "weights in a folder of the node",
        "air-gapped",
        lambda among: (
            _volume(among, "dragoman-from-node")
            == {"hostPath": {"path": "/mnt/huggingface", "type": "DirectoryOrCreate"}}
        ),
        ((WORKER, "path: {{ $cache.hostPath }}", "path: /mnt"),),
    ),
    Property(
        "weights in an image volume, read-only",
        "air-gapped",
        lambda among: (
            _volume(among, "dragoman-from-image")["image"]["reference"] == "registry.internal/weights/qwen3-8b:1"
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
    Property(
        "without a hub nothing is asked of one",
        "air-gapped",
        lambda among: environment(container(among, "Deployment", "dragoman-from-node"))["HF_HUB_OFFLINE"] == "1",
        ((WORKER, "{{- if $model.loadsNothing }}", "{{- if false }}"),),
    ),
    Property(
        "a worker's grace fits into what the kubelet allows",
        "everything",
        _drain,
        (
            (WORKER, "{{ sub (int .model.stopSeconds) 40 }}", "{{ .model.stopSeconds }}"),
            (WORKER, "terminationGracePeriodSeconds: {{ .model.stopSeconds }}", ""),
        ),
    ),
    Property(
        "an embedded worker's grace fits as well",
        "embedded",
        lambda among: flags(among, "Deployment", "dragoman-smollm2")["--grace"] == "140",
        ((WORKER, '{{- $flags = concat $flags (list "--grace" (include "dragoman.graceSeconds" .)) -}}', ""),),
    ),
    Property(
        "a worker that is found by DNS waits until it is found no more",
        "no-redis",
        lambda among: at(container(among, "Deployment", QWEN), "lifecycle.preStop.sleep.seconds") == 10,
        ((WORKER, "{{- if not $model.registers }}\nlifecycle:", "{{- if false }}\nlifecycle:"),),
    ),
    Property(
        "workers register, as a user of their own and by TLS",
        "external-redis",
        _registers,
        (
            (WORKER, 'list "--register" $url', "list"),
            (WORKER, "(default $given.username $given.workers.username)", "$given.username"),
            (WORKER, '(list "--redis-password-file"', '(list "--redis-file"'),
            (WORKER, '(list "--redis-ca-file"', '(list "--redis-file"'),
            (WORKER, "(default $redis.existingSecret $redis.external.workers.existingSecret)", "$redis.existingSecret"),
            ("_gateway.tpl", 'dict "redis" true', 'dict "redis" false'),
        ),
    ),
    Property(
        "workers without a registry are found by a headless Service",
        "sentinels",
        _found_by_dns,
        (
            ("models/service.yaml", "clusterIP: None", "clusterIP: 10.0.0.1"),
            ("_gateway.tpl", '(dict "dns" (', '(dict "name" ('),
        ),
    ),
    Property(
        "engine and gateway agree how many sequences run at once",
        "everything",
        lambda among: (
            flags(among, "Deployment", QWEN)["--max-num-seqs"] == "64"
            and gateway_yaml(among)["models"]["qwen3-8b"]["max_in_flight"] == 64
        ),
        ((WORKER, '"--max-num-seqs"', '"--max-seqs"'), ("_gateway.tpl", '"max_in_flight"', '"max_context"')),
    ),
    Property(
        "engines tell what they have cached where gateways listen",
        "several-models",
        _told_and_heard,
        (
            (WORKER, '(list "--kv-events-config" (toJson $events))', "(list)"),
            (WORKER, '(printf "tcp://*:%d" (int .replayPort))', '(printf "tcp://*:%d" (int .port))'),
            (WORKER, "(int .bufferSteps)", "10000"),
            ("_models.tpl", "and $runs $events.enabled", "and $runs"),
        ),
    ),
    Property(
        "vLLM's key comes from the Secret that the gateway shows",
        "everything",
        lambda among: (
            environment(container(among, "Deployment", QWEN))["VLLM_API_KEY"]
            == {"secretKeyRef": {"name": "worker-key", "key": "key"}}
            and gateway_yaml(among)["models"]["qwen3-8b"]["api_key_file"] == "/run/dragoman/models/qwen3-8b/key"
        ),
        ((WORKER, "- name: VLLM_API_KEY", "- name: VLLM_KEY"), ("_gateway.tpl", '"api_key_file"', '"other"')),
    ),
    Property(
        "a roll-out frees a GPU before it asks for one",
        "minimal",
        lambda among: deployment(among, QWEN)["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1},
        ((WORKLOAD, "maxSurge: 0", "maxSurge: 1"),),
    ),
    Property(
        "a roll-out with GPUs to spare keeps every copy",
        "everything",
        lambda among: deployment(among, QWEN)["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0},
        ((WORKLOAD, '{{- if eq $model.rollout "replace" }}', "{{- if true }}"),),
    ),
    Property(
        "one worker of a model at a time is evicted",
        "minimal",
        lambda among: (
            find(among, "PodDisruptionBudget", QWEN)["spec"]["maxUnavailable"] == 1
            and find(among, "PodDisruptionBudget", QWEN)["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        ),
        (
            ("models/service.yaml", "maxUnavailable: 1", "maxUnavailable: 0"),
            ("models/service.yaml", "unhealthyPodEvictionPolicy: AlwaysAllow", ""),
        ),
    ),
)
