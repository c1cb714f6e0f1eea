"""Properties of workers that come and go, of models larger than a machine, and of those that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from tests.acceptance.helm.chart import Object, container, find, pods
from tests.acceptance.helm.property import at


def _triggers(among: Sequence[Object], name: str) -> dict[str, Object]:
    return {one["name"]: one["metadata"] for one in find(among, "ScaledObject", name)["spec"]["triggers"]}


def waiting(among: Sequence[Object]) -> bool:
    """Summed over the workers: one that waits at each of ten is ten, not one."""
    trigger = _triggers(among, "dragoman-busy")["waiting"]
    workers = 'sum(vllm:num_requests_waiting{namespace="llm",job="llm/dragoman-workers",model_name="busy"})'
    gateways = 'sum(dragoman_queue_length{namespace="llm",job="dragoman-metrics",model="busy"})'
    return workers in trigger["query"] and gateways in trigger["query"] and trigger["threshold"] == "8"


def wakes(among: Sequence[Object]) -> bool:
    """Whatever was asked in the last minutes keeps one copy, and never orders a second."""
    spec = find(among, "ScaledObject", "dragoman-seldom")["spec"]
    trigger = _triggers(among, "dragoman-seldom")["demand"]
    asked = 'dragoman_requests_total{namespace="llm",job="dragoman-metrics",model="seldom"}'
    seen = f"increase({asked}[5m])" in trigger["query"] and f"{asked} unless {asked} offset 5m" in trigger["query"]
    runs = "vllm:num_requests_running" in trigger["query"]
    one = trigger["activationThreshold"] == "0" and int(trigger["threshold"]) >= 1_000_000_000
    return bool(spec["minReplicaCount"] == 0 and spec["cooldownPeriod"] == 1200 and seen and runs and one)


def group(among: Sequence[Object]) -> bool:
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


def same_processor(among: Sequence[Object]) -> bool:
    """The sampler may run on any node; what the leader says that it can do must hold there."""
    both = find(among, "LeaderWorkerSet", "dragoman-large")["spec"]["leaderWorkerTemplate"]
    words = [at(both[part], "spec.containers.0.args") for part in ("leaderTemplate", "workerTemplate")]
    found = all("workers.vllm.processors:Sequences" in one for one in words)
    stock = find(among, "LeaderWorkerSet", "dragoman-scaled")["spec"]["leaderWorkerTemplate"]
    return found and "--stock" not in at(stock["workerTemplate"], "spec.containers.0.args")


def outlives(among: Sequence[Object]) -> bool:
    """All Pods of a group are told to end at once: those that compute go when the leader has drained."""
    for where, pod in pods(among):
        if where.endswith("rank"):
            pause = at(pod, "spec.containers.0.lifecycle.preStop.sleep.seconds")
            if not 80 < pause < pod["spec"]["terminationGracePeriodSeconds"] == 120:
                return False
    return True


def ray(among: Sequence[Object]) -> bool:
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
