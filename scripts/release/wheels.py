"""The sdist, and a wheel with the native part for each kind of Linux.

One wheel serves Python 3.11 and every later one (PEP 384: abi3). zig's C compiler builds for machines other than this
one; CPython's headers differ between them in nothing that the limited interface shows. Tags: PEP 600 and PEP 656.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.release.proof import CLEAN, DRAGOMAN, NotProved, serves
from scripts.release.version import DIST, ROOT, version

TOOLS = ROOT / ".venv-release" / "bin"
TARGETS = {
    "manylinux2014_x86_64.manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64.manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""Tags of a platform -> zig's name for it. `pip install --platform` looks for the name before PEP 600, too."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEBIAN = "bookworm"
ARM_PARTS = "libssl3,libexpat1,zlib1g,libffi8,libsqlite3-0"
ARM = ("mmdebstrap", "qemu-aarch64-static")
"""Commands that bring Debian's Python for aarch64, and run it here."""


def build(folder: Path) -> None:
    """Builds the sdist from this checkout, and each wheel from the sdist."""
    _build("--sdist", ROOT, folder)
    for tag, target in TARGETS.items():
        with tempfile.TemporaryDirectory() as scratch:
            headers = shlex.quote(str(_headers(Path(scratch))))
            compiler = f"{shlex.quote(str(TOOLS / 'python'))} -m ziglang cc -target {target} -I{headers}"
            environment = {"CC": compiler, "LDSHARED": f"{compiler} -shared -s", "CFLAGS": "-O3"}
            _build("--wheel", _unpacked(folder, Path(scratch)), folder, ["--py-limited-api=cp311"], environment)
        (built,) = folder.glob("*-linux_*.whl")
        words = ["-m", "wheel", "tags", "--remove", f"--platform-tag={tag}", str(built)]
        subprocess.run([TOOLS / "python", *words], check=True, stdout=subprocess.DEVNULL)


def prove(folder: Path) -> Iterator[str]:
    """Checks metadata, tags and interface; then installs and serves with each Python that is here."""
    wheels = sorted(folder.glob("*.whl"))
    (sdist,) = folder.glob("*.tar.gz")
    for path in (*wheels, sdist):
        yield f"{path.name}: {path.stat().st_size / 1e6:.2f} MB"
    subprocess.run([TOOLS / "twine", "check", "--strict", *wheels, sdist], check=True, stdout=subprocess.DEVNULL)
    yield "metadata: valid (twine check --strict)"
    for path in wheels:
        _check_tag(path)
    yield "tags: what the native parts need of libc (auditwheel), and of CPython (abi3audit)"
    wanted = ["--find-links", str(folder), f"dragoman=={version(ROOT)}"]
    for name in PYTHONS:
        python = _python(name)
        if python is None:
            yield f"Python {name}: NOT PROVED, there is none here"
            continue
        begun = time.monotonic()
        yield f"Python {name}: {_with_pip(python, wanted)}, {time.monotonic() - begun:.0f} s"
    yield f"sdist with a compiler: {_with_pip(sys.executable, [str(sdist)])}"
    yield f"sdist without one: {_with_pip(sys.executable, [str(sdist)], False, {'CC': '/absent/cc'})}"
    missing = [name for name in ARM if shutil.which(name) is None]
    yield f"aarch64: {f'NOT PROVED, without {missing}' if missing else _on_arm()}"
    yield "musl: NOT PROVED beyond the interface of CPython; try a wheel in a container of Alpine"


def publish(version: str) -> list[str]:
    """See `scripts.release.__main__`."""
    return [f"{TOOLS.relative_to(ROOT)}/twine upload dist/dragoman-{version}-*.whl dist/dragoman-{version}.tar.gz"]


def _build(
    kind: str, source: Path, folder: Path, options: Sequence[str] = (), environment: dict[str, str] | None = None
) -> None:
    words = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(folder), str(source)]
    words += [f"--config-setting=--build-option={option}" for option in options]
    done = subprocess.run(words, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode or "without its native relay" in done.stdout:
        raise NotProved(f"{shlex.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _headers(scratch: Path) -> Path:
    """A copy of this Python's headers. Debian's pyconfig.h leads to the one of the target, which may not be here."""
    include = Path(sysconfig.get_path("include"))
    copy = scratch / "include"
    shutil.copytree(include, copy)
    own = include.parent / str(sysconfig.get_config_var("MULTIARCH")) / include.name / "pyconfig.h"
    if own.exists():
        shutil.copy(own, copy)
    return copy


def _unpacked(folder: Path, scratch: Path) -> Path:
    """The sdist's folder."""
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / sdist.name.removesuffix(".tar.gz")


def _check_tag(wheel: Path) -> None:
    """Raises NotProved if the wheel needs more of libc or of CPython than its name says."""
    subprocess.run([TOOLS / "abi3audit", "--strict", wheel], check=True, capture_output=True)
    tag = wheel.stem.rpartition("-")[2]
    if tag.startswith("musllinux"):  # auditwheel reads these beside musl alone
        return
    shown = subprocess.run([TOOLS / "auditwheel", "show", "--json", wheel], check=True, capture_output=True).stdout
    needed = json.loads(shown)["overall_tag"]
    if needed not in tag.split("."):
        raise NotProved(f"{wheel.name}: auditwheel found {needed}")


def _python(name: str) -> str | None:
    """An interpreter of this version that can make environments: on the path, or one of pyenv's."""
    there = sorted(Path.home().glob(f".pyenv/versions/{name}.*/bin/python{name}"))
    for python in (shutil.which(f"python{name}"), *map(str, there)):
        if python and not subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode:
            return python
    return None


def _with_pip(python: str, what: Sequence[str], native: bool = True, more: dict[str, str] | None = None) -> str:
    """Installs by pip's arguments `what` into a fresh environment, and tries the gateway. Returns what it reports."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        subprocess.run([python, "-m", "venv", home], check=True, env=CLEAN)
        words = ["install", "-qq", "--disable-pip-version-check", *what]
        subprocess.run([home / "bin" / "pip", *words], check=True, env={**CLEAN, **(more or {})})
        command = [str(home / "bin" / "dragoman")]
        return serves(home, command, command, native)


def _on_arm() -> str:
    """Runs the wheel for aarch64 by Debian's Python of that machine, emulated. Returns what the gateway reports."""
    with tempfile.TemporaryDirectory() as scratch:
        root, site = Path(scratch) / "root", Path(scratch) / "site"
        bring = ["mmdebstrap", "--quiet", "--variant=extract", "--arch=arm64", f"--include=python3,{ARM_PARTS}"]
        subprocess.run([*bring, DEBIAN, root], check=True)
        index = ["--find-links", str(DIST), "--only-binary", ":all:", "--platform", "manylinux2014_aarch64"]
        index += ["--platform", "manylinux_2_28_aarch64", "--python-version", "3.11", "--target", str(site)]
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *index]
        # pip reads markers by its own Python, and Debian's 3.11.2 wants one package more.
        subprocess.run([*pip, f"dragoman=={version(ROOT)}", "async-timeout"], check=True, env=CLEAN)
        emulated = ["qemu-aarch64-static", "-L", str(root), "-E", f"PYTHONPATH={site}"]
        return serves(
            Path(scratch), [*emulated, str(root / "usr/bin/python3.11"), "-m", "gateway.cli"], [str(DRAGOMAN)]
        )
