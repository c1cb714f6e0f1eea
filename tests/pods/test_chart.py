"""The chart's Pods, run: they become ready, `helm test` passes, and nobody's stream is cut when Pods go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx
import pytest
import yaml

from gateway.auth import new_key
from tests.pods.cluster import Cluster, Ended, Pod
from tests.pods.machine import Machine, run, say
from tests.repo.tree import ROOT

HELM = ROOT / "tests" / "helm" / "tools" / "node_modules" / "helm" / "helm"
RELEASE = "pods"
DIALECTS = ("openai", "sagemaker", "azure", "ollama", "friendli")
PARTS = {"gateway": 2, "worker": 2, "valkey": 1}
STREAMS = 4
# So long that streams outlive the preStop pause and the notice before the drain.
TOKENS = 1200


def rendered() -> list[dict[str, Any]]:
    """What `helm install` would apply, hooks included."""
    values = ROOT / "tests" / "pods" / "values.yaml"
    words = [str(HELM), "template", RELEASE, str(ROOT / "helm" / "dragoman"), "--namespace", "default"]
    say(f"helm template {RELEASE} helm/dragoman --values tests/pods/values.yaml")
    return [one for one in yaml.safe_load_all(run(*words, "--values", str(values))) if one]


@dataclass
class Installed:
    """The release on its machine. key is a client's."""

    cluster: Cluster
    key: str

    @property
    def url(self) -> str:
        """The gateway's Service."""
        return f"http://{self.cluster.addresses['pods-dragoman']}"

    def pods(self, component: str) -> list[Pod]:
        """The Pods of one part of the chart."""
        pods = self.cluster.pods.values()
        return [pod for pod in pods if pod.labels["app.kubernetes.io/component"] == component]


@pytest.fixture(scope="module")
def installed(machine: Machine, valkey_image: str) -> Iterator[Installed]:
    objects = rendered()
    key, entry = new_key("caller", None)
    with Cluster(machine) as cluster:
        cluster.secret("keys", **{"keys.yaml": entry})
        cluster.secret("redis", password="a password of Valkey's")
        cluster.secret("caller", key=key)
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


def test_helm_test_passes_in_every_dialect(installed: Installed) -> None:
    for one in installed.cluster.hooks:
        if one["kind"] == "ConfigMap":
            installed.cluster.kept["ConfigMap", one["metadata"]["name"]] = one
    (pod,) = (one for one in installed.cluster.hooks if one["kind"] == "Pod")
    status, said = installed.cluster.complete(pod, limit_s=300)
    say("helm test:\n" + said)
    assert status == 0, said
    asked = [f"{dialect}, {how}" for dialect in DIALECTS for how in ("plain", "streamed")]
    assert [one for one in asked if one not in said] == []


def test_limits_are_counted_in_valkey_by_all_gateways(installed: Installed) -> None:
    for pod in installed.pods("gateway"):
        page = httpx.get(f"http://{pod.address}:9090/metrics", timeout=10).text
        assert "dragoman_limits_strict 1.0" in page
        assert "dragoman_limits_replicas 2.0" in page


def test_clients_reach_no_metrics_and_nobody_without_a_key(installed: Installed) -> None:
    assert httpx.get(f"{installed.url}/metrics", timeout=10).status_code == 401
    assert httpx.post(f"{installed.url}/v1/chat/completions", json={}, timeout=10).status_code == 401


def test_containers_are_what_the_chart_says_of_them(installed: Installed, machine: Machine) -> None:
    for pod in installed.cluster.pods.values():
        container = pod.container(pod.spec["containers"][0])
        assert machine.podman("exec", container, "id", "-u") == "65532\n"
        code = "touch /here 2>/dev/null && echo written; touch /tmp/here && echo tmp; grep CapEff /proc/1/status"
        said = machine.podman("exec", container, "sh", "-c", code).split()
        assert said == ["tmp", "CapEff:", "0000000000000000"]


@dataclass
class Stream:
    """A streaming client of the Service, in a thread of its own."""

    url: str
    key: str
    tokens: int
    number: int
    begun: threading.Event = field(default_factory=threading.Event)
    text: bytes = b""
    fault: str = ""
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, name=f"stream-{self.number}")
        self.thread.start()

    def _read(self) -> None:
        question = f"Tell me a very long story about the number {self.number}."
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "max_tokens": self.tokens,
            "temperature": 0,
        }
        headers = {"authorization": f"Bearer {self.key}"}
        try:
            with (
                httpx.Client(timeout=120) as client,
                client.stream("POST", f"{self.url}/v1/chat/completions", json=body, headers=headers) as reply,
            ):
                for block in reply.iter_raw():
                    self.text += block
                    self.begun.set()
            if reply.status_code != 200:
                self.fault = f"status {reply.status_code}: {self.text[:300]!r}"
        except httpx.HTTPError as error:
            self.fault = repr(error)
        self.ended = monotonic()
        self.begun.set()

    @property
    def whole(self) -> bool:
        return not self.fault and self.text.endswith(b"data: [DONE]\n\n") and b'"error"' not in self.text


class Asking:
    """Short requests through the Service, one after the other, until told to stop: every one must be answered."""

    def __init__(self, installed: Installed) -> None:
        self._over = threading.Event()
        self._installed = installed
        self.answered = 0
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._ask, name="asking")

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        headers = {"authorization": f"Bearer {self._installed.key}"}
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        with httpx.Client(base_url=self._installed.url, headers=headers, timeout=120) as client:
            while not self._over.wait(0.2):
                try:
                    reply = client.post("/v1/chat/completions", json=body)
                    if reply.status_code != 200:
                        self.faults.append(f"{reply.status_code}: {reply.text[:200]}")
                except httpx.HTTPError as error:
                    self.faults.append(repr(error))
                self.answered += 1


def deleted_under_load(installed: Installed, name: str, tokens: int) -> tuple[list[Stream], list[Ended], float]:
    """Deletes a Pod while streams run and requests come: (streams, how its containers ended, when SIGTERM came).

    Fails when a stream is cut or a request is not answered.
    """
    with Asking(installed) as asking:
        streams = [Stream(installed.url, installed.key, tokens, number) for number in range(STREAMS)]
        for stream in streams:
            assert stream.begun.wait(120)
        ended = installed.cluster.delete(name)
        told = monotonic() - ended[0].seconds
        for stream in streams:
            stream.thread.join()
    cut = [stream.fault or repr(stream.text[-200:]) for stream in streams if not stream.whole]
    outlived = sum(stream.ended > told for stream in streams)
    say(
        f"{name} deleted: {STREAMS} streams, {outlived} of them beyond the SIGTERM, {len(cut)} cut; "
        f"{asking.answered} other requests, {len(asking.faults)} failed; ended {ended[0].seconds:.1f} s after the SIGTERM"
    )
    assert (cut, asking.faults) == ([], [])
    assert asking.answered > 0
    assert [(one.status, one.killed) for one in ended] == [(0, False)] * len(ended)
    return streams, ended, told


def replace(installed: Installed, pod: Pod) -> None:
    """Another Pod in the place of one that went, as its Deployment makes it."""
    installed.cluster.start(f"{pod.name}-next", {"metadata": {"labels": pod.labels}, "spec": pod.spec})
    installed.cluster.wait_ready()


def test_no_stream_is_cut_when_gateways_are_replaced(installed: Installed) -> None:
    for pod in installed.pods("gateway"):
        streams, _, told = deleted_under_load(installed, pod.name, TOKENS)
        assert any(stream.ended > told for stream in streams), "all ended before the drain: nothing was tried"
        replace(installed, pod)


def test_no_request_fails_when_a_worker_is_replaced(installed: Installed) -> None:
    """Streams that end within the preStop pause: llama.cpp's worker does not wait for longer ones."""
    pod = installed.pods("worker")[0]
    deleted_under_load(installed, pod.name, 40)
    replace(installed, pod)
