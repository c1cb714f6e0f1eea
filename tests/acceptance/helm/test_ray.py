"""The commands of a RayCluster's Pods, run in bash with stand-ins for `ray` and `dragoman`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.acceptance.helm.chart import container, objects, pods

# What KubeRay's command may hold: quotes that only a shell takes apart.
START = "ray start --block --resources='{\"gpu\": 8}'"
STUB = """\
#!/usr/bin/env python3
import json, os, pathlib, sys
log = pathlib.Path(os.environ["LOG"])
with log.open("a") as out:
    out.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
# The cluster is healthy at the third look.
looks = log.read_text().count("health-check")
sys.exit(sys.argv[1] == "health-check" and looks < 3)
"""


def calls(command: list[str], folder: Path) -> list[list[str]]:
    """What the command ran, in order."""
    stub = folder / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    for name in ("ray", "dragoman"):
        (folder / name).symlink_to(stub)
    (folder / "sleep").symlink_to("/bin/true")
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(folder / "log"), "KUBERAY_GEN_RAY_START_CMD": START}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


STARTED = ["ray", "start", "--block", '--resources={"gpu": 8}']


def test_the_head_starts_ray_waits_for_it_and_becomes_the_worker(tmp_path: Path) -> None:
    head = container(objects("multi-node"), "RayCluster", "dragoman-ray-0")
    made = calls([*head["command"], *head["args"]], tmp_path)
    assert STARTED in made
    assert made.count(["ray", "health-check"]) == 3
    (worker,) = [call for call in made if call[0] == "dragoman"]
    assert worker[1:3] == ["worker", "vllm"]
    assert worker[3:] == head["args"][2:]
    assert worker[3:5] == ["--model", "/models/deepseek"]


def test_the_others_become_ray(tmp_path: Path) -> None:
    (rank,) = [pod for where, pod in pods(objects("multi-node")) if where == "RayCluster/dragoman-ray-0 rank"]
    one = rank["spec"]["containers"][0]
    assert calls([*one["command"], *one["args"]], tmp_path) == [STARTED]
