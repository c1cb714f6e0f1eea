"""The images of deploy/: what is in them, what is not, as whom they run, and that the worker's starts its engine."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.release import images
from tests.acceptance.pods.conftest import WORKER
from tests.acceptance.pods.machine import PYTHON, TAG, Machine, run, say
from tests.repo.tree import ROOT

GATEWAY, EMBEDDED = "dragoman/gateway:pods", "dragoman/embedded:pods"
RUN = ("run", "--rm", "--network", "none")
LOCKS = {GATEWAY: ["run", "tracing", "s3"], EMBEDDED: ["run", "tracing", "s3", "embedded", "model"]}


def locked(*locks: str) -> dict[str, str]:
    """Name -> version of what these locks mean on the base's Python."""
    found: dict[str, str] = {}
    for lock in locks:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        for line in re.findall(r"^([\w.-]+==.+?)\s*\\?$", text, re.MULTILINE):
            need = Requirement(line)
            # Debian's release of 3.11 is older than some: markers may tell them apart.
            environment = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.2"}
            if need.marker is None or need.marker.evaluate(environment):
                (pin,) = need.specifier
                found[str(canonicalize_name(need.name))] = pin.version
    return found


@pytest.mark.parametrize("image", list(LOCKS))
def test_the_bill_of_materials_names_what_was_locked(machine: Machine, image: str) -> None:
    bill = json.loads(machine.podman(*RUN, "--entrypoint", "cat", image, "/opt/dragoman/sbom.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {str(canonicalize_name(one["name"])): one["version"] for one in bill["components"]}
    listed.pop("dragoman", None)
    assert listed == locked(*LOCKS[image])


@pytest.mark.parametrize("image", list(LOCKS))
def test_the_image_holds_no_tools_and_no_settings_of_the_build(machine: Machine, image: str) -> None:
    code = "import importlib.util as look"
    code += "; print([name for name in ('pip', 'setuptools', 'cyclonedx_py') if look.find_spec(name)])"
    assert machine.podman(*RUN, "--entrypoint", "python", image, "-c", code) == "[]\n"
    code = "ls -d /opt/* /mnt/* /src /etc/pip.conf 2>/dev/null || true"
    left = machine.podman(*RUN, "--entrypoint", "sh", image, "-c", code)
    assert left.split() == ["/opt/dragoman"]


@pytest.mark.parametrize("image", list(LOCKS))
def test_it_runs_as_nobody_that_exists_on_a_root_that_cannot_be_written(machine: Machine, image: str) -> None:
    run = [*RUN, "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    assert machine.podman(*run, image, "--version").startswith("dragoman ")
    assert machine.podman(*run, "--entrypoint", "id", image, "-u") == "65532\n"


def test_the_archives_of_a_release_are_small_and_billed(machine: Machine, tmp_path: Path) -> None:
    """docs/deploy.md states the sizes. One manifest takes the archives of several processors."""
    images.archive(tmp_path, TAG, machine.words("buildah"), machine.environment)
    for line in images.inspected(tmp_path):
        say(line)
    buildah = machine.words("buildah")
    for path in sorted((tmp_path / "images").glob("*.tar")):
        run(*buildah, "manifest", "create", path.stem, env=machine.environment)
        run(*buildah, "manifest", "add", path.stem, f"oci-archive:{path}", env=machine.environment)
        target = [f"--digestfile={path}.digest", path.stem, f"dir:{path}.pushed"]
        run(*buildah, "manifest", "push", "--all", *target, env=machine.environment)
        assert Path(f"{path}.digest").read_text().startswith("sha256:")


def test_the_workers_image_starts_its_engine_and_drains(machine: Machine) -> None:
    namespace, address = machine.host()
    words = ["run", "--detach", "--name", "engine", "--network", "host", WORKER]
    machine.podman(*words, "worker", "vllm", "--model", "served", "--port", "8000", namespace=namespace)
    end = time.monotonic() + 180
    while "listening on" not in (said := machine.podman("logs", "engine")):
        assert time.monotonic() < end, said
        time.sleep(0.1)
    reply = httpx.post(
        f"http://{address}:8000/v1/completions", json={"model": "served", "prompt": "hi", "max_tokens": 4}, timeout=120
    )
    assert reply.json()["usage"]["completion_tokens"] == 4
    assert machine.podman("exec", "engine", "id", "-u") == "65532\n"
    machine.podman("stop", "--time", "120", "engine")
    assert machine.podman("inspect", "--format", "{{.State.ExitCode}}", "engine") == "0\n"
