"""Parts of a release that are tried without a builder: archives are read, limits hold, commands run in order."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.release import images, wheels
from scripts.release.proof import NotProved, running
from tests.repo.tree import ROOT

STATUS = """Package: libc6
Status: install ok installed
Version: 2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Version: 1
"""
LISTED = {"components": [{"name": "httptools", "version": "0.8.0"}]}


def packed(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    """A tar of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def archive(path: Path, *layers: Mapping[str, bytes], user: str = "65532:65532", claimed: int = 0) -> Path:
    """An OCI archive. claimed: added to the size that the manifest names for each layer."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = {"created": "2026-11-29T08:00:00.123456789Z", "config": {"User": user}}
    held = [blob(packed(layer, "w:gz")) for layer in layers]
    manifest = {
        "config": blob(json.dumps(config).encode()),
        "layers": [{**one, "size": one["size"] + claimed} for one in held],
    }
    index = {"manifests": [blob(json.dumps(manifest).encode())]}
    path.write_bytes(packed({"index.json": json.dumps(index).encode(), **blobs}))
    return path


def layers(status: str = STATUS) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """A base, and what stands on it."""
    old = {"./var/lib/dpkg/status": b"Package: old\nStatus: install ok installed\nVersion: 0\n"}
    listed = json.dumps(LISTED).encode()
    return old, {"opt/dragoman/sbom.cdx.json": listed, "var/lib/dpkg/status": status.encode()}


def test_a_bill_lists_debians_packages_and_pythons_of_the_last_layer(tmp_path: Path) -> None:
    bill = images.bill(archive(tmp_path / "gateway-amd64.tar", *layers()))
    (image, *packages) = bill["packages"]
    assert image["name"] == "gateway-amd64"
    assert [one["externalRefs"][0]["referenceLocator"] for one in packages] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10",
        "pkg:pypi/httptools@0.8.0",
    ]
    assert bill["creationInfo"]["created"] == "2026-11-29T08:00:00Z"
    contained = [one["relatedSpdxElement"] for one in bill["relationships"] if one["relationshipType"] == "CONTAINS"]
    assert contained == [one["SPDXID"] for one in packages]


def test_two_builds_of_one_image_have_one_bill(tmp_path: Path) -> None:
    bills = [images.bill(archive(tmp_path / "gateway-amd64.tar", *layers())) for _ in range(2)]
    assert bills[0]["packages"] == bills[1]["packages"]


@pytest.mark.parametrize(
    ("more", "fault"),
    [({"user": ""}, "runs as"), ({"user": "0"}, "runs as"), ({"claimed": 60_000_000}, "120 MB compressed, more")],
)
def test_a_large_image_and_one_of_root_are_not_proved(more: dict[str, Any], fault: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    archive(tmp_path / "images" / "gateway-amd64.tar", *layers(), **more)
    with pytest.raises(NotProved, match=fault):
        list(images.prove(tmp_path))


def test_the_address_is_where_it_listens_and_not_a_workers(tmp_path: Path) -> None:
    """A gateway logs its workers' addresses first."""
    said = """{"event":"worker ready","worker":"http://127.0.0.1:1"}
{"event":"listening","address":"http://127.0.0.1:2"}"""
    with running(tmp_path, [sys.executable, "-c", f"print({said!r}, flush=True); input()"]) as address:
        assert address == "http://127.0.0.1:2"
    with running(tmp_path, ["echo", "listening on http://127.0.0.1:3"]) as address:
        assert address == "http://127.0.0.1:3"
    with pytest.raises(NotProved, match="ended with 1"), running(tmp_path, ["false"]):
        pass


@pytest.mark.parametrize("status", [0, 3])
def test_publishing_runs_each_command_once_and_ends_at_the_first_that_fails(status: int, tmp_path: Path) -> None:
    """cosign, helm and buildah are stand-ins; the digest is what buildah wrote."""
    log = tmp_path / "log"
    for name in ("buildah", "helm", "cosign"):
        command = tmp_path / name
        ending = f"exit {status}" if name == "helm" else "exit 0"
        command.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\n{ending}\n')
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "REGISTRY": "registry.example/Owner"}
    words = [sys.executable, "-m", "scripts.release.publish", "chart"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    said = log.read_text().splitlines()
    assert "oci://registry.example/owner/charts" in said[0]
    assert [line.split()[0] for line in said] == (["helm"] if status else ["helm", "cosign"])


def test_the_chart_beside_the_wheels_is_not_uploaded_with_them(tmp_path: Path) -> None:
    (line,) = wheels.publish("9.9.9")
    for name in (mine := ["dragoman-9.9.9-cp311-abi3-x.whl", "dragoman-9.9.9.tar.gz"]) + ["dragoman-9.9.9.tgz"]:
        (tmp_path / name).touch()
    patterns = [word.removeprefix("dist/") for word in line.split()[2:]]
    assert sorted(path.name for pattern in patterns for path in tmp_path.glob(pattern)) == mine


def test_every_pushed_image_is_signed_and_attested_by_digest() -> None:
    lines = list(images.publish("9.9.9"))
    for name in images.NAMES:
        digest = f"$(cat dist/images/{name}.digest)"
        own = [line for line in lines if f"dragoman/{name}" in line]
        assert [line.split()[0] for line in own] == ["buildah"] * 4 + ["cosign"] * 3
        assert all(f'dragoman/{name}@{digest}"' in line for line in own[4:])


@pytest.mark.parametrize("words", [[], ["wheels"], ["images"]])
def test_nothing_is_published_without_a_part_and_a_registry(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "REGISTRY"}
    done = subprocess.run([sys.executable, "-m", "scripts.release.publish", *words], cwd=ROOT, env=environment)
    assert done.returncode == 2
