"""A release of the chart on its machine, and a client of its Service."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import yaml

from tests.acceptance.helm.chart import HELM
from tests.acceptance.pods.cluster import Cluster, Pod
from tests.acceptance.pods.machine import run, say

RELEASE = "pods"
PASSWORD = "a password of Valkey's"


def rendered(chart: Path, values: Path, *options: str) -> list[dict[str, Any]]:
    """What `helm install` would apply, hooks included."""
    words = [str(HELM), "template", RELEASE, str(chart), "--namespace", "default", "--values", str(values), *options]
    say(" ".join(["helm", *words[1:]]))
    return [one for one in yaml.safe_load_all(run(*words)) if one]


def secrets(cluster: Cluster, entry: str, key: str) -> None:
    """The Secrets that the values name. entry: of the key, for gateways; key: for `helm test`."""
    cluster.secret("keys", **{"keys.yaml": entry})
    cluster.secret("redis", password=PASSWORD)
    cluster.secret("caller", key=key)


@dataclass
class Installed:
    """The release on its machine. key is a client's."""

    cluster: Cluster
    key: str

    @property
    def url(self) -> str:
        """The gateway's Service."""
        return f"http://{self.cluster.addresses['pods-dragoman']}"

    def pods(self, component: str, model: str | None = None) -> list[Pod]:
        """The Pods of one part of the chart, or the workers of one model."""
        pods = [pod for pod in self.cluster.pods.values() if pod.labels["app.kubernetes.io/component"] == component]
        return [pod for pod in pods if model in (None, pod.labels.get("dragoman-model"))]

    def ready(self, model: str) -> int:
        """How many workers of a model each gateway has: the fewest."""
        pages = [httpx.get(f"http://{pod.address}:9090/metrics", timeout=60).text for pod in self.pods("gateway")]
        named = f'dragoman_worker_ready{{model="{model}"'
        return min(
            sum(line.startswith(named) and line.endswith(" 1.0") for line in page.splitlines()) for page in pages
        )

    def wait_for(self, model: str, count: int) -> None:
        """Until each gateway has so many ready workers of a model."""
        end = monotonic() + 300
        while (found := self.ready(model)) != count:
            assert monotonic() < end, f"{found} workers of {model}, not {count}"
            sleep(0.5)


class Client:
    """A client of the Service, in a thread of its own: one reply after the other on connections that it keeps.

    begun is set at the first byte of the first reply, for which the model has been read.
    """

    def __init__(self, installed: Installed, number: int, *, stream: bool, tokens: int, model: str) -> None:
        self.begun, self.over = threading.Event(), threading.Event()
        self.faults: list[str] = []
        self.whole = 0
        question = f"Tell me a long story about the number {number}."
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "stream": stream,
            "max_tokens": tokens,
            "temperature": 0,
            **({} if model == "smollm2" else {"ignore_eos": True}),
        }
        self._end = b"data: [DONE]\n\n" if stream else b"}"
        self._thread = threading.Thread(target=self._ask, args=(installed,), name=f"client-{number}")

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()

    def _ask(self, installed: Installed) -> None:
        headers = {"authorization": f"Bearer {installed.key}"}
        with httpx.Client(base_url=installed.url, headers=headers, timeout=300) as client:
            while not self.over.is_set():
                text = b""
                try:
                    with client.stream("POST", "/v1/chat/completions", json=self._body) as reply:
                        for block in reply.iter_raw():
                            text += block
                            self.begun.set()
                except httpx.HTTPError as error:
                    self.faults.append(f"{error!r} after {text[-100:]!r}")
                    continue
                if reply.status_code == 200 and text.endswith(self._end) and b'"error"' not in text:
                    self.whole += 1
                else:
                    self.faults.append(f"{reply.status_code}: {text[-300:]!r}")
