"""deploy/compose.yaml, run: its gateway, worker and Valkey with their own commands, files and confinement.

There is no compose here: each service becomes a Pod that says the same. Prometheus and Grafana are not had without a
registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
import yaml

from tests.acceptance.pods.cluster import Cluster
from tests.acceptance.pods.machine import TAG, Machine
from tests.repo.tree import ROOT

FOLDER = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VOLUMES = set(COMPOSE["volumes"])
RUN = ("valkey", "worker", "gateway")


def template(name: str) -> dict[str, Any]:
    """The Pod of one service."""
    service = SERVICES[name]
    repository, _, tag = service["image"].rpartition(":")
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    container: dict[str, Any] = {
        "name": name,
        "image": f"{repository}:{TAG if repository.startswith('dragoman/') else tag}",
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
        },
        "volumeMounts": [],
    }
    if "command" in service:
        container["args"] = service["command"]
    if "user" in service:
        user, group = service["user"].split(":")
        container["securityContext"] |= {"runAsUser": int(user), "runAsGroup": int(group)}
    if "healthcheck" in service:
        kind, *words = service["healthcheck"]["test"]
        assert kind == "CMD"
        container["readinessProbe"] = {"exec": {"command": words}, "periodSeconds": 1, "timeoutSeconds": 10}
    volumes = []
    for number, mount in enumerate(service.get("volumes", ())):
        source, place, *mode = mount.split(":")
        file = {"hostPath": {"path": str((FOLDER / source).resolve()), "type": "File"}}
        volumes.append({"name": f"file-{number}", **({"emptyDir": {}} if source in VOLUMES else file)})
        container["volumeMounts"].append({"name": f"file-{number}", "mountPath": place, "readOnly": mode == ["ro"]})
    for number, place in enumerate(service.get("tmpfs", ())):
        volumes.append({"name": f"tmpfs-{number}", "emptyDir": {}})
        container["volumeMounts"].append({"name": f"tmpfs-{number}", "mountPath": place})
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if "stop_grace_period" in service:
        spec["terminationGracePeriodSeconds"] = int(service["stop_grace_period"].removesuffix("s"))
    return {"metadata": {"labels": {"service": name}}, "spec": spec}


@pytest.fixture(scope="module")
def up(machine: Machine) -> Iterator[Cluster]:
    with Cluster(machine) as cluster:
        # Every service is a name that the others find.
        cluster.apply(
            {
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"clusterIP": "None", "selector": {"service": name}},
            }
            for name in RUN
        )
        for name in RUN:
            cluster.start(f"compose-{name}", template(name))
        cluster.wait_ready()
        yield cluster
        for name in list(cluster.pods):
            (ended,) = cluster.delete(name)
            assert (ended.status, ended.killed) == (0, False), ended.log


@pytest.mark.whole
def test_it_answers(up: Cluster) -> None:
    url = f"http://{up.pods['compose-gateway'].address}"
    body = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
    reply = httpx.post(f"{url}:8080/v1/chat/completions", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 0
    end = monotonic() + 180
    while "dragoman_limits_strict 1.0" not in httpx.get(f"{url}:9090/metrics", timeout=60).text:
        assert monotonic() < end, "limits are not counted in Valkey"
        sleep(0.5)


@pytest.mark.whole
def test_what_prometheus_scrapes_answers(up: Cluster) -> None:
    jobs = yaml.safe_load((FOLDER / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    for job in jobs:
        for target in (target for one in job["static_configs"] for target in one["targets"]):
            name, port = target.split(":")
            page = f"http://{up.pods[f'compose-{name}'].address}:{port}/metrics"
            assert httpx.get(page, timeout=60).status_code == 200
