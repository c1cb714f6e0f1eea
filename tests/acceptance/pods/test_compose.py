"""deploy/compose.yaml, run: its gateway, workers, clients and Valkey with their commands, files and confinement.

There is no compose here: each service becomes a Pod that says the same. Prometheus and Grafana are not had without a
registry.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.acceptance.deploy.shown import Shown
from tests.acceptance.pods.cluster import Cluster
from tests.acceptance.pods.machine import TAG, Machine
from tests.repo.tree import ROOT
from tests.support.harness import until

FOLDER = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VOLUMES = set(COMPOSE["volumes"])
WORKERS = ("small-1", "small-2", "large-1", "large-2")
RUN = ("valkey", *WORKERS, "gateway", "traffic")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that compose/secrets.sh makes."""
    folder = tmp_path_factory.mktemp("compose")
    shutil.copy(FOLDER / "compose" / "secrets.sh", folder)
    subprocess.run(["sh", str(folder / "secrets.sh")], check=True, timeout=60)
    return folder / "secrets"


def template(name: str, secrets: Path) -> dict[str, Any]:
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
    for ours, theirs in (("entrypoint", "command"), ("command", "args")):
        if ours in service:
            container[theirs] = service[ours]
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
    for one in service.get("secrets", ()):
        file = COMPOSE["secrets"][one["source"]]["file"].removeprefix("./compose/secrets/")
        volumes.append({"name": one["source"], "hostPath": {"path": str(secrets / file), "type": "File"}})
        container["volumeMounts"].append({"name": one["source"], "mountPath": one["target"], "readOnly": True})
    for number, place in enumerate(service.get("tmpfs", ())):
        volumes.append({"name": f"tmpfs-{number}", "emptyDir": {}})
        container["volumeMounts"].append({"name": f"tmpfs-{number}", "mountPath": place})
    # Docker starts no container again that was killed by its user; podman's Pods would.
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
    if "stop_grace_period" in service:
        spec["terminationGracePeriodSeconds"] = int(service["stop_grace_period"].removesuffix("s"))
    return {"metadata": {"labels": {"service": name}}, "spec": spec}


@pytest.fixture(scope="module")
def up(machine: Machine, secrets: Path) -> Iterator[Cluster]:
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
            cluster.start(f"compose-{name}", template(name, secrets))
        cluster.wait_ready()
        yield cluster
        for name in list(cluster.pods):
            (ended,) = cluster.delete(name)
            assert (ended.status, ended.killed) == (0, False), ended.log


@pytest.fixture
def shown(up: Cluster, secrets: Path) -> Shown:
    url = f"http://{up.pods['compose-gateway'].address}"
    return Shown(f"{url}:8080", f"{url}:9090", secrets)


@pytest.mark.whole
def test_it_answers_those_with_a_key(shown: Shown) -> None:
    until(lambda: shown.ready() == {"small": 2, "large": 2}, 180)
    assert shown.chat("small").status_code == 401
    replies = [shown.chat(model, shown.secret("app")) for model in ("small", "large")]
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
    made = shown.made_key("friend")
    until(lambda: shown.chat("small", made).status_code == 200, 60)
    assert httpx.get(f"{shown.admin_url}/console", follow_redirects=True, timeout=60).status_code == 200
    until(lambda: "dragoman_limits_strict 1.0" in shown.metrics(), 180)


@pytest.mark.whole
def test_its_clients_fill_the_dashboards(shown: Shown) -> None:
    found = ("dragoman_requests_total{", 'model="small"', 'model="large"', 'team="demo"')
    until(lambda: all(word in shown.metrics() for word in found), 180)


@pytest.mark.whole
def test_what_prometheus_scrapes_answers(up: Cluster) -> None:
    jobs = yaml.safe_load((FOLDER / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    for job in jobs:
        for target in (target for one in job["static_configs"] for target in one["targets"]):
            name, port = target.split(":")
            page = f"http://{up.pods[f'compose-{name}'].address}:{port}/metrics"
            assert httpx.get(page, timeout=60).status_code == 200


@pytest.mark.whole
def test_a_stream_goes_on_when_its_worker_is_killed(up: Cluster, shown: Shown) -> None:
    """Both workers of the model may be busy with the clients of compose: those go first."""
    up.delete("compose-traffic")
    large = {name: f"http://{up.pods[f'compose-{name}'].address}:8000" for name in WORKERS if name.startswith("large")}

    def kill(name: str) -> None:
        pod = up.pods[f"compose-{name}"]
        up.machine.podman("kill", pod.container(pod.spec["containers"][0]))

    killed = shown.stream_goes_on("large", large, kill)
    (ended,) = up.delete(f"compose-{killed}")
    assert ended.killed, ended.log
