"""The Containerfiles and `make images`: what can be said of them without building. `make test-pods` builds them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.pods.machine import LOCKS
from tests.repo.tree import ROOT, tracked

NAMES = ("gateway", "embedded", "worker")


def instructions(name: str) -> list[str]:
    """One line for each instruction, without comments."""
    text = (ROOT / "deploy" / f"{name}.Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    return [re.sub(r"\s+", " ", line) for line in re.sub(r"\\\n", " ", text).splitlines() if line]


@pytest.mark.parametrize("name", NAMES)
def test_the_base_is_an_argument_and_a_public_one_has_a_version(name: str) -> None:
    first, then, *_ = instructions(name)
    assert then.startswith("FROM ${BASE}")
    default = first.removeprefix("ARG BASE=")
    assert default == "dragoman/gateway" or re.fullmatch(r"docker\.io/[\w/-]+:v?\d+\.\d+\S*", default), first


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_nobody(name: str) -> None:
    assert [line for line in instructions(name) if line.startswith("USER")][-1] == "USER 65532:65532"


@pytest.mark.parametrize("name", NAMES)
def test_every_package_is_locked(name: str) -> None:
    installs = re.findall(r"install (?!-y)[^&]*", " && ".join(instructions(name)))
    installs = [one for one in installs if "apt-get" not in one]
    assert installs
    assert [one for one in installs if "--require-hashes" not in one and "--no-index --no-deps" not in one] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_lists_its_packages(name: str) -> None:
    assert any("cyclonedx-py environment" in line and "sbom.cdx.json" in line for line in instructions(name))


def test_gateway_and_worker_are_built_alike() -> None:
    """Two files, because their bases differ: in the worker's, the base's user need not be root. A worker sends no
    traces, keeps no files, reads no cache events and relays no streams; vLLM does the one, the gateway the others."""
    gateway, worker = (
        [
            re.sub("( -r)? requirements/(tracing|s3|kv-events|native).txt", "", line)
            for line in instructions(name)
            if line != "USER 0" and not line.startswith("RUN command -v cc")
        ]
        for name in ("gateway", "worker")
    )
    ends = [lines.index("FROM ${BASE}") for lines in (gateway, worker)]
    assert gateway[1 : ends[0]] == worker[1 : ends[1]]


def test_the_gateway_can_do_what_its_configuration_can_ask_for() -> None:
    """The chart and compose take the section `tracing` and a bucket, which need packages of their own."""
    (line,) = [line for line in instructions("gateway") if "requirements/run.txt" in line and line.startswith("RUN")]
    assert "-r requirements/run.txt -r requirements/tracing.txt -r requirements/s3.txt" in line


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for name in NAMES:
        for line in instructions(name):
            if line.startswith("COPY ") and "--from" not in line:
                copied |= {word.split("/")[0] for word in line.split()[1:-1]}
    assert copied == kept


# -- scripts/images.py

BUILDER = """#!{python}
import sys
print("built", *sys.argv[1:])
sys.exit("{fails}" in sys.argv[3])
"""


def images(folder: Path, *words: str, fails: str = "nothing") -> subprocess.CompletedProcess[str]:
    """`make images` with a builder that says what it was told."""
    builder = folder / "docker"
    builder.write_text(BUILDER.format(python=sys.executable, fails=fails))
    builder.chmod(0o755)
    environment = {**os.environ, "PATH": str(folder)}
    command = [sys.executable, "scripts/images.py", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def built(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("built ") for line in done.stdout.splitlines() if line.startswith("built ")]


def test_the_embedded_image_stands_on_the_gateways(tmp_path: Path) -> None:
    done = images(tmp_path, "--tag", "t")
    assert done.returncode == 0, done.stderr
    assert built(done) == [
        "build --file deploy/gateway.Containerfile --tag dragoman/gateway:t .",
        "build --file deploy/embedded.Containerfile --tag dragoman/embedded:t --build-arg BASE=dragoman/gateway:t .",
    ]


def test_words_reach_the_builder(tmp_path: Path) -> None:
    done = images(tmp_path, "--tag", "t", "--engine", "e", "--pip-config", "pip.conf", "worker", "--", "--squash")
    (line,) = built(done)
    assert line == (
        "build --file deploy/worker.Containerfile --tag dragoman/worker:t --build-arg BASE=e "
        f"--secret id=pip,src={ROOT}/pip.conf --squash ."
    )


def test_the_commit_reaches_what_installs_the_gateway(tmp_path: Path) -> None:
    """The context has no git, and `dragoman --version` in the image names the commit all the same."""
    (tmp_path / "git").write_text("#!/bin/sh\necho abc-dirty\n")
    (tmp_path / "git").chmod(0o755)
    named = {line.split()[2]: "SOURCE_COMMIT=abc-dirty" in line for line in built(images(tmp_path, *NAMES))}
    assert named == {f"deploy/{name}.Containerfile": name != "embedded" for name in NAMES}
    assert all("ARG SOURCE_COMMIT" in instructions(name) for name in NAMES if name != "embedded")


def test_a_failed_build_is_the_end(tmp_path: Path) -> None:
    done = images(tmp_path, "--tag", "t", fails="gateway")
    assert (done.returncode, len(built(done))) == (1, 1)


@pytest.mark.parametrize(
    ("words", "said"), [(["other"], "no image is called other"), (["--builder", "absent-builder"], "absent-builder")]
)
def test_what_cannot_be_built_is_said_in_a_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = images(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_builder_it_names_some(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/images.py"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "docker, podman, buildah" in done.stderr) == (2, True)


def test_every_containerfile_is_built_by_a_name() -> None:
    assert {path.name for path in tracked("deploy/*.Containerfile")} == {f"{name}.Containerfile" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_pods_have_what_an_image_installs(name: str) -> None:
    """They build without a registry, from wheels that were fetched before."""
    locks = {lock for line in instructions(name) for lock in re.findall(r"requirements/([\w-]+)\.txt", line)}
    assert locks
    assert locks <= set(LOCKS)
