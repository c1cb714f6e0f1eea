"""The images of the gateway and of the embedded worker, as OCI archives, each with its bill of materials in SPDX.

One machine builds for its own processor; a manifest joins what several have built. BASE=debian in the environment takes
a base made from Debian's packages, where no image registry can be reached, by the tools of the Pods tests. Archives
follow the OCI image layout, bills SPDX 2.3.

vLLM's worker has no archive: its base alone has many gigabytes (`make images ARGS=worker`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scripts.release.proof import DRAGOMAN, NotProved, serves
from scripts.release.version import ROOT, version

NAMES = ("gateway", "embedded")
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
MOST_MB = {"gateway": 120}
"""What an image may take on the wire: the sum of its compressed layers."""
VALIDATOR = ROOT / ".venv-scan" / "bin" / "pyspdxtools"
_PACKAGES, _LISTED = "var/lib/dpkg/status", "opt/dragoman/sbom.cdx.json"


def build(folder: Path) -> None:
    """Builds for this machine's processor, and writes `images/NAME-PROCESSOR.tar` and `.spdx.json`."""
    if os.environ.get("BASE") == "debian":
        # Not before it is wanted: it needs root, and commands that only Debian has.
        from tests.acceptance.pods.machine import BASE, TAG, Machine, base

        with Machine() as machine:
            machine.podman("import", "--quiet", str(base()), BASE)
            machine.build("--base", BASE, *NAMES)
            archive(folder, TAG, machine.words("buildah"), machine.environment)
        return
    tag = version(ROOT)
    words = [sys.executable, "scripts/images.py", "--builder", "buildah", "--tag", tag, *NAMES]
    subprocess.run(words, cwd=ROOT, check=True)
    archive(folder, tag, ["buildah"])


def archive(folder: Path, tag: str, buildah: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Writes archives and bills of images that the store of `buildah` has under a tag."""
    (folder / "images").mkdir(exist_ok=True)
    for name in NAMES:
        path = folder / "images" / f"{name}-{PROCESSORS[platform.machine()]}.tar"
        image = f"dragoman/{name}"  # what `docker load` calls it, too
        target = f"oci-archive:{path}:{image}:{version(ROOT)}"
        words = [*buildah, "push", "--quiet", "--format", "oci", f"{image}:{tag}", target]
        subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
        path.with_suffix(".spdx.json").write_text(json.dumps(bill(path), indent=1) + "\n")


def prove(folder: Path) -> Iterator[str]:
    """Checks each archive, and sends requests to a gateway in it. Raises NotProved."""
    yield from inspected(folder)
    native = os.environ.get("BASE") != "debian"
    for path in sorted(folder.glob("images/*.tar")):
        lacks = "" if native else "; NOT PROVED with its native relay: Debian's Python has no headers"
        yield f"{path.name}: {_run(path, native)}{lacks}"


def inspected(folder: Path) -> Iterator[str]:
    """Checks size, user and bill of each archive. Raises NotProved."""
    for path in sorted(folder.glob("images/*.tar")):
        name = path.stem.rpartition("-")[0]
        manifest, config = _described(path)
        size = sum(layer["size"] for layer in manifest["layers"]) / 1e6
        if size > MOST_MB.get(name, size):
            raise NotProved(f"{path.name}: {size:.0f} MB compressed, more than {MOST_MB[name]}")
        if (user := config["config"].get("User")) != "65532:65532":
            raise NotProved(f"{path.name} runs as {user}")
        checked = path.with_suffix(".spdx.json")
        done = subprocess.run([VALIDATOR, "--infile", checked], capture_output=True, text=True)
        if done.returncode:
            raise NotProved(f"{checked.name}: {done.stderr[-2000:]}")
        count = len(json.loads(checked.read_text())["packages"]) - 1
        yield f"{path.name}: {size:.0f} MB compressed, user {user}, {count} packages in a valid SPDX bill"


def _run(path: Path, native: bool) -> str:
    """Serves by the gateway of an archive. Returns what it reports as its version. Raises NotProved."""
    words = ["buildah", "from", "--quiet", f"oci-archive:{path}"]
    name = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch).chmod(0o755)  # for the image's user
            place = ["--isolation", "chroot", "--volume", f"{scratch}:/mnt:ro", "--workingdir", "/mnt"]
            return serves(Path(scratch), ["buildah", "run", *place, name, "--", "dragoman"], [str(DRAGOMAN)], native)
    finally:
        subprocess.run(["buildah", "rm", name], check=True, stdout=subprocess.DEVNULL)


def publish(now: str) -> Iterator[str]:
    """The commands: a manifest of all processors is pushed to $REGISTRY (host and owner), signed and attested."""
    for name in NAMES:
        image, digest = f"$REGISTRY/dragoman/{name}", f"dist/images/{name}.digest"
        yield f"buildah manifest create {image}:{now}"
        for processor in PROCESSORS.values():
            yield f"buildah manifest add {image}:{now} oci-archive:dist/images/{name}-{processor}.tar"
        yield f"buildah manifest push --all --digestfile {digest} {image}:{now} docker://{image}:{now}"
        yield f'cosign sign --yes "{image}@$(cat {digest})"'
        for processor in PROCESSORS.values():
            predicate = f"--predicate dist/images/{name}-{processor}.spdx.json"
            yield f'cosign attest --yes --type spdxjson {predicate} "{image}@$(cat {digest})"'


def bill(path: Path) -> dict[str, Any]:
    """The packages of an image in SPDX: Debian's by dpkg's status, Python's by the CycloneDX list inside the image."""
    manifest, config = _described(path)
    held = _files(path, manifest, (_PACKAGES, _LISTED))
    listed = json.loads(held[_LISTED])["components"]
    packages = [_package("pypi", one["name"], one["version"]) for one in listed]
    packages += [_package("deb/debian", *pair) for pair in _installed(held.get(_PACKAGES, b"").decode())]
    packages.sort(key=lambda one: one["SPDXID"])
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    root = {**_package("oci", path.stem, version(ROOT)), "SPDXID": "SPDXRef-image"}
    created = datetime.fromisoformat(config["created"][:19]).replace(tzinfo=UTC)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": path.stem,
        "documentNamespace": f"https://spdx.org/spdxdocs/{path.stem}-{digest}",
        "creationInfo": {"created": f"{created:%Y-%m-%dT%H:%M:%SZ}", "creators": ["Tool: dragoman-release"]},
        "packages": [root, *packages],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"),
            *(_relation("SPDXRef-image", "CONTAINS", one["SPDXID"]) for one in packages),
        ],
    }


def _package(kind: str, name: str, number: str) -> dict[str, Any]:
    place = f"pkg:{kind}/{quote(name)}@{quote(number, safe='')}"
    return {
        # SPDX allows letters, digits, dots and hyphens there.
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{kind}-{name}-{number}"),
        "name": name,
        "versionInfo": number,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": place},
        ],
    }


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _installed(status: str) -> Iterator[tuple[str, str]]:
    """(name, version) of each paragraph of dpkg's status that is installed."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields["Version"]


def _described(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the configuration of the one image in an archive."""
    with tarfile.open(path) as outer:
        (entry,) = json.load(_member(outer, "index.json"))["manifests"]
        manifest = json.load(_member(outer, _blob(entry)))
        return manifest, json.load(_member(outer, _blob(manifest["config"])))


def _files(path: Path, manifest: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, bytes]:
    """What these files hold: a later layer replaces an earlier one."""
    found = {}
    with tarfile.open(path) as outer:
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=_member(outer, _blob(layer)), mode="r|*") as inner:
                for member in inner:
                    if (name := member.name.removeprefix("./")) in wanted and (content := inner.extractfile(member)):
                        found[name] = content.read()
    return found


def _blob(entry: Mapping[str, Any]) -> str:
    return f"blobs/{entry['digest'].replace(':', '/')}"


def _member(archive: tarfile.TarFile, name: str) -> Any:
    """An open file of the archive. Raises KeyError if there is none, as `extractfile` does."""
    return archive.extractfile(name)
