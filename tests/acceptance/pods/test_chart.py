"""The chart's Pods, run: they become ready, `helm test` passes, and nobody's stream is cut when Pods go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, ResponseError

from gateway.auth import new_key
from tests.acceptance.helm.chart import CHART
from tests.acceptance.pods.cluster import Cluster, Pod
from tests.acceptance.pods.machine import Machine, say
from tests.acceptance.pods.release import PASSWORD, Client, Installed, rendered, secrets
from tests.repo.tree import ROOT
from tests.support.clients import GENERATING

VALUES = ROOT / "tests" / "acceptance" / "pods" / "values.yaml"
PARTS = {"gateway": 2, "worker": 4, "valkey": 1}
STREAMS = 4


@pytest.fixture(scope="module")
def installed(machine: Machine) -> Iterator[Installed]:
    objects = rendered(CHART, VALUES)
    key, entry = new_key("caller", None)
    with Cluster(machine) as cluster:
        secrets(cluster, entry, key)
        cluster.apply(objects)
        cluster.wait_ready()
        say(f"ready: {', '.join(cluster.pods)}")
        yield Installed(cluster, key)
        for pod in cluster.pods.values():
            assert not pod.failures, pod.failures
            for spec in pod.spec["containers"]:
                restarts = machine.podman("inspect", "--format", "{{.RestartCount}}", pod.container(spec))
                assert restarts == "0\n", cluster.log(pod)


def test_what_the_values_ask_for_runs(installed: Installed) -> None:
    assert {part: len(installed.pods(part)) for part in PARTS} == PARTS
    assert len(installed.cluster.pods) == sum(PARTS.values())


def test_the_configuration_passes_the_check_before_it_is_applied(installed: Installed) -> None:
    (job,) = (one for one in installed.cluster.hooks if one["kind"] == "Job")
    pod = {"metadata": job["metadata"], "spec": job["spec"]["template"]["spec"]}
    assert ": good" in hook(installed, pod, limit_s=300)


def hook(installed: Installed, pod: dict[str, Any], limit_s: float) -> str:
    """The output of a hook's Pod, which must end as a success."""
    for one in installed.cluster.hooks:
        if one["kind"] == "ConfigMap":
            installed.cluster.kept["ConfigMap", one["metadata"]["name"]] = one
    status, said = installed.cluster.complete(pod, limit_s=limit_s)
    assert status == 0, said
    return said


def test_helm_test_passes_in_every_dialect(installed: Installed) -> None:
    (pod,) = (one for one in installed.cluster.hooks if one["kind"] == "Pod")
    said = hook(installed, pod, limit_s=900)
    say("helm test:\n" + said)
    asked = [f"{dialect}, {how}" for dialect in GENERATING for how in ("plain", "streamed")]
    assert [one for one in asked if one not in said] == []


def test_limits_are_counted_in_valkey_by_all_gateways(installed: Installed) -> None:
    """They find each other there soon after it has come up, which may be after they have."""
    wanted = {"dragoman_limits_strict 1.0", "dragoman_limits_replicas 2.0"}
    for pod in installed.pods("gateway"):
        end = monotonic() + 180
        while lacking := wanted - set(httpx.get(f"http://{pod.address}:9090/metrics", timeout=60).text.splitlines()):
            assert monotonic() < end, (pod.name, lacking)
            sleep(0.5)


def test_valkey_asks_for_its_password(installed: Installed) -> None:
    (pod,) = installed.pods("valkey")
    with Redis(pod.address, socket_timeout=60) as stranger, pytest.raises((AuthenticationError, ResponseError)):
        stranger.ping()
    with Redis(pod.address, password=PASSWORD, socket_timeout=60) as known:
        assert known.ping()


def test_workers_enter_the_registry_and_leave_it(installed: Installed) -> None:
    """The chart's default: gateways know workers from Valkey, by no Service's name and no list."""
    config = yaml.safe_load(installed.cluster.kept["ConfigMap", "pods-dragoman"]["data"]["gateway.yaml"])
    assert config["models"]["served"]["discover"] == {"redis": True}
    installed.wait_for("served", 2)
    body = {"model": "served", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    for _ in range(4):
        reply = httpx.post(
            f"{installed.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {installed.key}"},
            timeout=300,
        )
        assert reply.status_code == 200, reply.text
    pod = installed.pods("worker", "served")[0]
    (ended,) = installed.cluster.delete(pod.name)
    assert (ended.status, ended.killed) == (0, False), ended.log
    installed.wait_for("served", 1)
    replace(installed, pod)
    installed.wait_for("served", 2)


def test_clients_reach_no_metrics_and_nobody_without_a_key(installed: Installed) -> None:
    assert httpx.get(f"{installed.url}/metrics", timeout=60).status_code == 401
    assert httpx.post(f"{installed.url}/v1/chat/completions", json={}, timeout=60).status_code == 401


def test_containers_are_what_the_chart_says_of_them(installed: Installed) -> None:
    """User 65532, no capability, and a root that cannot be written; what is an emptyDir can be."""
    for pod in installed.cluster.pods.values():
        empty = {volume["name"] for volume in pod.spec["volumes"] if "emptyDir" in volume}
        mounts = pod.spec["containers"][0]["volumeMounts"]
        places = [mount["mountPath"] for mount in mounts if mount["name"] in empty and not mount.get("readOnly")]
        # podman gives an emptyDir the owner and mode of the image's folder, and /dev/shm is root's.
        places = [place for place in places if place != "/dev/shm"]
        code = "id -u; grep CapEff /proc/1/status; for place; do touch $place/here 2>/dev/null && echo $place; done"
        words = ["sh", "-c", code, "sh", "", "/opt", *places]
        said = installed.cluster.execute(pod, *words)[1].split()
        assert said == ["65532", "CapEff:", "0" * 16, *places], pod.name


def deleted_under_load(
    installed: Installed, pod: Pod, model: str = "smollm2", tokens: int = 60
) -> list[dict[str, Any]]:
    """Deletes a Pod while streams run and requests come, none of which may fail: what the Pod logged after SIGTERM."""
    with ExitStack() as stack:
        clients = [Client(installed, number, stream=True, tokens=tokens, model=model) for number in range(STREAMS)]
        clients.append(Client(installed, STREAMS, stream=False, tokens=2, model=model))
        for client in clients:
            stack.enter_context(client)
        for client in clients:
            assert client.begun.wait(300)
        ended = installed.cluster.delete(pod.name)
    *streams, asking = clients
    faults = [fault for client in clients for fault in client.faults]
    say(
        f"{pod.name} deleted, {ended[0].seconds:.1f} s from SIGTERM to the end: meanwhile {asking.whole} replies and "
        f"{sum(stream.whole for stream in streams)} streams were whole, {len(faults)} were not"
    )
    assert faults == []
    assert all(client.whole for client in clients)
    assert [(one.status, one.killed) for one in ended] == [(0, False)] * len(ended)
    lines = [json.loads(line) for line in ended[0].log.splitlines() if line.startswith("{")]
    told = [number for number, line in enumerate(lines) if line.get("event") == "draining"]
    return lines[told[0] :] if told else []


def replace(installed: Installed, pod: Pod) -> None:
    """Another Pod in the place of one that went, as its Deployment makes it."""
    installed.cluster.start(f"{pod.name}-next", {"metadata": {"labels": pod.labels}, "spec": pod.spec})
    installed.cluster.wait_ready()


def test_no_stream_is_cut_when_gateways_are_replaced(installed: Installed) -> None:
    """Clients keep their connections, as a Service lets them: some streams run on a gateway that gets a SIGTERM."""
    for pod in installed.pods("gateway"):
        lines = deleted_under_load(installed, pod)
        outlived = [line for line in lines if line["event"] == "request" and line["stream"]]
        say(f"{pod.name} ended {len(outlived)} streams after the SIGTERM")
        assert outlived, "no stream ran at the SIGTERM: nothing was tried"
        assert {line["outcome"] for line in outlived} == {"ok"}
        replace(installed, pod)


@pytest.mark.whole
def test_no_request_fails_when_a_worker_is_replaced(installed: Installed) -> None:
    """llama.cpp's worker ends at once, but after the preStop pause, in which its gateways learn of it by DNS."""
    pod = installed.pods("worker", "smollm2")[0]
    deleted_under_load(installed, pod)
    replace(installed, pod)


@pytest.mark.whole
def test_no_stream_is_cut_by_a_rolling_upgrade_of_workers(installed: Installed) -> None:
    """Each worker that registers is replaced in its turn. Its streams outlast `--hand-over`: they go on at the other
    one, and the Pod need not wait for their end."""
    installed.wait_for("served", 2)
    for pod in installed.pods("worker", "served"):
        deleted_under_load(installed, pod, "served", tokens=4000)
        replace(installed, pod)
        installed.wait_for("served", 2)
    pages = [httpx.get(f"http://{pod.address}:9090/metrics", timeout=60).text for pod in installed.pods("gateway")]
    lines = [line for page in pages for line in page.splitlines()]
    continued = [line for line in lines if line.startswith('dragoman_continued_total{model="served",reason="leaving"}')]
    say(f"streams that went on: {continued}")
    assert continued, "no stream outlasted the hand-over: nothing was tried"
