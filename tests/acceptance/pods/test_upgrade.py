"""`helm upgrade` from 0.1.0 to this chart and `helm rollback`, with clients that ask all the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth import new_key
from tests.acceptance.helm.api import upgraded
from tests.acceptance.helm.chart import CHART
from tests.acceptance.pods.cluster import Cluster
from tests.acceptance.pods.machine import TAG, Machine, say
from tests.acceptance.pods.release import RELEASE, Client, Installed, rendered, secrets
from tests.acceptance.upgrade.versions import HOME
from tests.repo.tree import ROOT

FORMER = "0.1.0"
FORMER_CHART = HOME / "chart"
VALUES = ROOT / "tests" / "acceptance" / "pods" / "upgraded.yaml"
STREAMS = 4

# 0.1.0 in this version's images: an interpreter finds the modules of PYTHONPATH first.
IMAGE = "FROM localhost/dragoman/{part}:{tag}\nCOPY earlier /opt/earlier\n{engine}ENV PYTHONPATH=/opt/earlier\n"
SERVER = "usr/lib/python3/dist-packages/vllm/entrypoints/openai/api_server.py"
ENGINE = '''"""A stand-in for vLLM's server, with 0.1.0's simulated worker."""
import os, sys
python = "/opt/dragoman/bin/python"
port = sys.argv[sys.argv.index("--port") + 1]
options = ["--host", "0.0.0.0", "--port", port, "--model", "served", "--itl-ms", "10"]
os.execv(python, [python, "-m", "workers.simulated", *options])
'''

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not FORMER_CHART.exists(), reason="0.1.0 is not in this clone: git fetch --unshallow"),
]


@pytest.fixture(scope="module")
def former(machine: Machine) -> None:
    """Images of 0.1.0."""
    (packages,) = HOME.glob("lib/python*/site-packages")
    files = {
        f"earlier/{path.relative_to(packages)}": path.read_bytes()
        for path in packages.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for part, engine in (("gateway", {}), ("worker", {SERVER: ENGINE.encode()})):
        text = IMAGE.format(part=part, tag=TAG, engine="COPY usr /usr\n" if engine else "")
        machine.image(f"dragoman/{part}:{FORMER}", text, {**files, **engine})


@pytest.fixture
def installed(machine: Machine, former: None) -> Iterator[Installed]:
    key, entry = new_key("caller", None)
    with Cluster(machine) as cluster:
        secrets(cluster, entry, key)
        cluster.apply(rendered(FORMER_CHART, VALUES, *tags(FORMER)))
        cluster.wait_ready()
        yield Installed(cluster, key)
        for name in list(cluster.pods):
            cluster.delete(name)


def tags(tag: str) -> list[str]:
    """The options that choose the images."""
    return ["--set", f"image.tag={tag},models.served.image.tag={tag}"]


def running(installed: Installed) -> str:
    """The version that all gateways name in their metrics."""
    pages = [httpx.get(f"http://{pod.address}:9090/metrics", timeout=60).text for pod in installed.pods("gateway")]
    (found,) = {line for page in pages for line in page.splitlines() if line.startswith("dragoman_build_info{")}
    return found


def changed_under_load(installed: Installed, objects: list[dict[str, Any]]) -> None:
    """Takes the release to other objects while clients ask, none of whose requests may fail."""
    with ExitStack() as stack:
        clients = [Client(installed, number, stream=True, tokens=100, model="served") for number in range(STREAMS)]
        clients.append(Client(installed, STREAMS, stream=False, tokens=2, model="served"))
        for client in clients:
            stack.enter_context(client)
        for client in clients:
            assert client.begun.wait(300)
        ended = installed.cluster.upgrade(objects)
        installed.wait_for("served", 2)
    faults = [fault for client in clients for fault in client.faults]
    whole = sum(client.whole for client in clients)
    say(f"{len(ended)} containers replaced: {whole} replies were whole, {len(faults)} were not")
    assert Counter(faults) == {}
    assert all(client.whole for client in clients)
    killed = [one.container for one in ended if one.killed]
    assert killed == []


def test_no_request_is_lost_on_the_way_to_this_version_and_back(installed: Installed, tmp_path: Path) -> None:
    """helm renders an upgrade by what is in the cluster, and a rollback by what it rendered before."""
    assert f'version="{FORMER}"' in running(installed)
    live = installed.cluster.kept["ConfigMap", f"{RELEASE}-dragoman"]
    objects = upgraded(VALUES, [live], tmp_path, CHART, *tags(TAG), release=RELEASE, namespace="default")
    changed_under_load(installed, objects)
    assert f'version="{version("dragoman")}"' in running(installed)
    changed_under_load(installed, rendered(FORMER_CHART, VALUES, *tags(FORMER)))
    assert f'version="{FORMER}"' in running(installed)
