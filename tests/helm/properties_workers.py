"""Properties of the workers, of their scaling, and of models that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from tests.helm.chart import Object, container, find, pods
from tests.helm.property import Property, at, deployment, environment, flags, gateway_yaml

WORKER = "_worker.tpl"
WORKLOAD = "models/workload.yaml"
GROUP = "models/leaderworkerset.yaml"
SCALED = "models/scaledobject.yaml"
QWEN = "dragoman-qwen3-8b"


def _volume(among: Sequence[Object], name: str, kind: str = "Deployment") -> Object:
    """The volume with the weights of a model's Pods, without its name."""
    volumes = at(find(among, kind, name), "spec.template.spec.volumes")
    found = next((volume for volume in volumes if volume["name"] == "cache"), {})
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
    selected = service["selector"].items() <= labels.items()
    entry = gateway_yaml(among)["models"]["qwen3-8b"]
    return service["clusterIP"] == "None" and selected and entry["discover"] == {"dns": f"{QWEN}:8000"}


def _triggers(among: Sequence[Object], name: str) -> dict[str, Object]:
    return {one["name"]: one["metadata"] for one in find(among, "ScaledObject", name)["spec"]["triggers"]}


def _waiting(among: Sequence[Object]) -> bool:
    """Summed over the workers: one that waits at each of ten is ten, not one."""
    trigger = _triggers(among, "dragoman-busy")["waiting"]
    workers = 'sum(vllm:num_requests_waiting{namespace="llm",model_name="busy"})'
    gateways = 'sum(dragoman_queue_length{namespace="llm",model="busy"})'
    return workers in trigger["query"] and gateways in trigger["query"] and trigger["threshold"] == "8"


def _wakes(among: Sequence[Object]) -> bool:
    """Whatever was asked in the last minutes keeps one copy, and never orders a second."""
    spec = find(among, "ScaledObject", "dragoman-seldom")["spec"]
    trigger = _triggers(among, "dragoman-seldom")["demand"]
    asked = 'dragoman_requests_total{namespace="llm",model="seldom"}'
    seen = f"increase({asked}[5m])" in trigger["query"] and f"{asked} unless {asked} offset 5m" in trigger["query"]
    runs = "vllm:num_requests_running" in trigger["query"]
    one = trigger["activationThreshold"] == "0" and int(trigger["threshold"]) >= 1_000_000_000
    return bool(spec["minReplicaCount"] == 0 and spec["cooldownPeriod"] == 1200 and seen and runs and one)


def _group(among: Sequence[Object]) -> bool:
    template = find(among, "LeaderWorkerSet", "dragoman-large")["spec"]["leaderWorkerTemplate"]
    leader = container(among, "LeaderWorkerSet", "dragoman-large")
    rank = at(template, "workerTemplate.spec.containers.0")
    group = ["--nnodes", "2", "--master-addr", "$(LWS_LEADER_ADDRESS)", "--node-rank"]
    shared = [word for word in leader["args"] if word in rank["args"]]
    return (
        template["size"] == 2
        and leader["command"] == ["dragoman", "worker", "vllm"]
        and leader["args"][-6:] == [*group, "0"]
        and rank["command"] == ["vllm", "serve"]
        and rank["args"][:2] == ["/models/llama-405b", "--headless"]
        and rank["args"][-6:] == [*group, "$(LWS_WORKER_INDEX)"]
        and {"--tensor-parallel-size", "8", "--pipeline-parallel-size"} <= set(shared)
    )


def _same_processor(among: Sequence[Object]) -> bool:
    """The sampler may run on any node; what the leader says that it can do must hold there."""
    both = find(among, "LeaderWorkerSet", "dragoman-large")["spec"]["leaderWorkerTemplate"]
    words = [at(both[part], "spec.containers.0.args") for part in ("leaderTemplate", "workerTemplate")]
    found = all("workers.vllm.processors:Sequences" in one for one in words)
    stock = find(among, "LeaderWorkerSet", "dragoman-scaled")["spec"]["leaderWorkerTemplate"]
    return found and "--stock" not in at(stock["workerTemplate"], "spec.containers.0.args")


def _outlives(among: Sequence[Object]) -> bool:
    """All Pods of a group are told to end at once: those that compute go when the leader has drained."""
    for where, pod in pods(among):
        if where.endswith("rank"):
            pause = at(pod, "spec.containers.0.lifecycle.preStop.sleep.seconds")
            if not 140 < pause < pod["spec"]["terminationGracePeriodSeconds"] == 180:
                return False
    return True


def _ray(among: Sequence[Object]) -> bool:
    clusters = [one for one in among if one["kind"] == "RayCluster"]
    head = container(among, "RayCluster", "dragoman-ray-0")
    script, *words = head["args"]
    groups = at(clusters[0], "spec.workerGroupSpecs")
    return (
        len(clusters) == 2
        and clusters[0]["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
        and "$KUBERAY_GEN_RAY_START_CMD" in script
        and "exec dragoman worker vllm" in script
        and words[-2:] == ["--distributed-executor-backend", "ray"]
        and [groups[0][key] for key in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 1]
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
            (WORKER, '{{- with include "dragoman.scheduling" .model | trim }}', "{{- with false }}"),
        ),
    ),
    Property(
        "vLLM is told of all GPUs of a Pod",
        "autoscaled",
        lambda among: flags(among, "Deployment", "dragoman-seldom")["--tensor-parallel-size"] == "2",
        ((WORKER, "{{- if gt (int $model.gpus) 1 -}}", "{{- if false -}}"),),
    ),
    Property(
        "workers run under a runtime class",
        "everything",
        lambda among: at(deployment(among, QWEN), "template.spec.runtimeClassName") == "nvidia",
        ((WORKER, "runtimeClassName: {{ . }}", ""),),
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
                environment(container(among, "Deployment", f"dragoman-from-{where}"))["HF_HOME"]
                for where in ("image", "claim", "node")
            ]
            == ["/tmp/huggingface", "/tmp/huggingface", "/models/huggingface"]
        ),
        ((WORKER, '$home := ternary $model.cache.mountPath "/tmp" $written', "$home := $model.cache.mountPath"),),
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
    Property(
        "an autoscaled model has no number of copies",
        "autoscaled",
        lambda among: "replicas" not in deployment(among, "dragoman-busy"),
        ((WORKLOAD, "{{- if not $model.autoscaling.enabled }}", "{{- if true }}"),),
    ),
    Property(
        "workers scale by the sum of what waits in them and in the gateways",
        "autoscaled",
        _waiting,
        (
            ("_queries.tpl", "sum(vllm:num_requests_waiting", "avg(vllm:num_requests_waiting"),
            ("_queries.tpl", "sum(dragoman_queue_length", "max(dragoman_queue_length"),
            (SCALED, "threshold: {{ $scaling.waitingPerReplica | quote }}", 'threshold: "1"'),
        ),
    ),
    Property(
        "a request wakes a model that sleeps, and only idleness sends it to sleep",
        "autoscaled",
        _wakes,
        (
            (SCALED, "{{- if eq (int $scaling.minReplicas) 0 }}", "{{- if false }}"),
            ("_queries.tpl", "sum(vllm:num_requests_running", "sum(vllm:num_requests_waiting_no"),
            (SCALED, 'threshold: "1000000000"', 'threshold: "1"'),
            (SCALED, "cooldownPeriod: {{ $scaling.cooldownSeconds }}", "cooldownPeriod: 0"),
        ),
    ),
    Property(
        "without Prometheus the copies stay",
        "autoscaled",
        lambda among: (
            find(among, "ScaledObject", "dragoman-busy")["spec"]["fallback"]
            == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}
        ),
        ((SCALED, "behavior: currentReplicasIfHigher", "behavior: static"),),
    ),
    Property(
        "copies of a model go slowly, one at a time",
        "autoscaled",
        lambda among: (
            at(
                find(among, "ScaledObject", "dragoman-busy"),
                "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown",
            )
            == {"stabilizationWindowSeconds": 900, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 180}]}
        ),
        ((SCALED, "stabilizationWindowSeconds: {{ $scaling.scaleDownSeconds }}", ""),),
    ),
    Property(
        "a LeaderWorkerSet is scaled as a whole",
        "multi-node",
        lambda among: (
            find(among, "ScaledObject", "dragoman-scaled")["spec"]["scaleTargetRef"]
            == {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "dragoman-scaled"}
            and "replicas" not in find(among, "LeaderWorkerSet", "dragoman-scaled")["spec"]
        ),
        (
            (
                SCALED,
                '{{ ternary "leaderworkerset.x-k8s.io/v1" "apps/v1" (eq $model.kind "LeaderWorkerSet") }}',
                "apps/v1",
            ),
            (GROUP, "{{- if not $model.autoscaling.enabled }}", "{{- if true }}"),
        ),
    ),
    Property(
        "a model larger than a machine is a group with one leader that answers",
        "multi-node",
        _group,
        (
            (GROUP, "size: {{ $model.nodes }}", "size: 1"),
            (GROUP, '"--nnodes" (toString $model.nodes)', '"--nnodes" "1"'),
            (GROUP, '(list $model.model "--headless")', "(list $model.model)"),
            (GROUP, '(list "--node-rank" "$(LWS_WORKER_INDEX)")', '(list "--node-rank" "1")'),
        ),
    ),
    Property(
        "all nodes of a group load the same logits processor",
        "multi-node",
        _same_processor,
        (
            (WORKER, '(list "--logits-processors" "workers.vllm.processors:Sequences")', "list"),
            (
                GROUP,
                '(without (include "dragoman.engineFlags" $of | fromJsonArray) "--stock")',
                '(include "dragoman.engineFlags" $of | fromJsonArray)',
            ),
        ),
    ),
    Property(
        "a lost rank restarts its group",
        "multi-node",
        lambda among: (
            at(find(among, "LeaderWorkerSet", "dragoman-large"), "spec.leaderWorkerTemplate.restartPolicy")
            == "RecreateGroupOnPodRestart"
        ),
        ((GROUP, "restartPolicy: RecreateGroupOnPodRestart", "restartPolicy: None"),),
    ),
    Property(
        "ranks outlive their leader's drain",
        "multi-node",
        _outlives,
        ((WORKER, 'seconds: {{ add (int (include "dragoman.graceSeconds" .)) 10 }}', "seconds: 5"),),
    ),
    Property(
        "the gateway finds leaders alone",
        "multi-node",
        lambda among: find(among, "Service", "dragoman-large")["spec"]["selector"]["dragoman-role"] == "leader",
        (("models/service.yaml", "dragoman-role: leader", ""),),
    ),
    Property(
        "a RayCluster runs Ray and the worker on its head",
        "multi-node",
        _ray,
        (
            ("models/raycluster.yaml", 'ray.io/overwrite-container-cmd: "true"', 'note: "true"'),
            ("models/raycluster.yaml", "exec dragoman worker vllm", "exec vllm serve"),
            ("models/raycluster.yaml", '(list "--distributed-executor-backend" "ray")', "list"),
            ("models/raycluster.yaml", "minReplicas: {{ sub $model.nodes 1 }}", "minReplicas: 0"),
        ),
    ),
    Property(
        "workers elsewhere are named by their addresses, with their own key and authority",
        "everything",
        lambda among: (
            gateway_yaml(among)["models"]["remote"]
            == {
                "backend": "openai",
                "workers": ["https://api.provider.example/base"],
                "api_key_file": "/run/dragoman/models/remote/api-key",
                "ca_file": "/run/dragoman/ca/remote/ca.crt",
                "upstream_model": "provider/big-2026",
                "deadlines": {"first_byte_s": "2m"},
            }
            and gateway_yaml(among)["models"]["zephyr"] == {"backend": "tgi", "workers": ["http://tgi.example:8080"]}
        ),
        (
            ("_gateway.tpl", '"backend" .backend', '"backend" "vllm"'),
            ("_gateway.tpl", '$entry "ca_file"', '$entry "other"'),
        ),
    ),
    Property(
        "a small model on CPU runs without a GPU",
        "embedded",
        lambda among: (
            container(among, "Deployment", "dragoman-smollm2")["command"] == ["dragoman", "worker", "embedded"]
            and "resources" not in container(among, "Deployment", "dragoman-smollm2")
            and gateway_yaml(among)["models"]["smollm2"]["backend"] == "llamacpp"
        ),
        (
            (
                WORKER,
                '(eq .model.engine "vllm") -}}\n  {{- $_ := set $resources',
                "true -}}\n  {{- $_ := set $resources",
            ),
            ("_gateway.tpl", '(ternary "llamacpp" "vllm" (eq .engine "embedded"))', '"vllm"'),
        ),
    ),
)
