"""The locks: pinned, hashed, without addresses, within what pyproject.toml asks for, and of one mind."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.lock import CLIENTS
from tests.repo.tree import ROOT

LOCKS = ROOT / "requirements"
TOGETHER = ("build", "run", "embedded", "model", "tracing", "kv-events", "s3", "dev")
ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\]+?))?(?P<rest>(?: --hash=\S+)*)"
)
HASH = re.compile(r" --hash=sha256:[0-9a-f]{64}")

# Versions with published faults in what clients or tenants can reach: floors must shut them out.
FLAWED = {
    "httptools": ("0.5.0", "CVE-2023-30589 in the llhttp it bundles: request smuggling"),
    "pyjwt": ("2.10.0", "CVE-2024-53861: the issuer was compared in part"),
    "python-multipart": ("0.0.17", "CVE-2024-53981: a log line for each byte before the first boundary"),
    "redis": ("4.5.3", "CVE-2023-28859: a cancelled command leaves its answer to the next caller"),
    "starlette": ("1.0.0", "CVE-2026-48710: a malformed Host header changes request.url"),
}


def entries(lock: Path) -> dict[str, tuple[str, str]]:
    """name -> (version, the rest of its logical line). Raises ValueError on a line that is no pin with hashes."""
    found: dict[str, tuple[str, str]] = {}
    for line in re.sub(r" \\\n\s+", " ", lock.read_text()).splitlines():
        if not line or line.startswith("#"):
            continue
        match = ENTRY.fullmatch(line)
        if match is None or not match["rest"] or HASH.sub("", match["rest"]):
            raise ValueError(f"{lock.name}: not a pin with hashes alone: {line[:80]}")
        found[canonicalize_name(match["name"])] = (match["version"], match["rest"])
    return found


def wanted() -> dict[str, list[Requirement]]:
    """Lock -> what its inputs ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    runtime = [Requirement(line) for line in project["project"]["dependencies"]]
    return {
        "build": [Requirement(line) for line in project["build-system"]["requires"]],
        "run": runtime,
        "embedded": [Requirement(line) for line in extras["embedded"]],
        "model": _written("model"),
        "tracing": [Requirement(line) for line in extras["tracing"]],
        "kv-events": [Requirement(line) for line in extras["kv-events"]],
        "s3": [Requirement(line) for line in extras["s3"]],
        "dev": _written("dev"),
        "uv": _written("uv"),
        "friendli": _written("friendli"),
        "sbom": _written("sbom"),
        "release": _written("release"),
        "scan": _written("scan"),
        "plots": _written("plots"),
        "docs": _written("docs"),
        "vllm": [*_written("vllm"), *runtime],
        **{f"clients-{group}": _written(f"clients-{group}") for group in CLIENTS},
        **{f"peer-{peer}": _written(f"peer-{peer}") for peer in ("litellm", "vllm-router", "sglang-router", "smg")},
    }


def _written(name: str) -> list[Requirement]:
    lines = (LOCKS / f"{name}.in").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_every_lock_has_its_inputs_here() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == set(wanted())


@pytest.mark.parametrize("name", sorted(wanted()))
def test_locks_hold_what_is_asked_for(name: str) -> None:
    locked = entries(LOCKS / f"{name}.txt")
    for need in wanted()[name]:
        version, _ = locked[canonicalize_name(need.name)]
        assert need.specifier.contains(version), f"{need} but locked {version}: run `make lock`"


@pytest.mark.parametrize("lock", sorted(LOCKS.iterdir()), ids=lambda path: path.name)
def test_no_lock_holds_an_address(lock: Path) -> None:
    assert re.findall(r"\S*(?:://|file:|--index|--extra-index|--find-links| @ )\S*", lock.read_text()) == []


def test_locks_that_share_an_environment_agree() -> None:
    pins: dict[str, tuple[str, str]] = {}
    for name in TOGETHER:
        for package, pin in entries(LOCKS / f"{name}.txt").items():
            assert pins.setdefault(package, pin) == pin, f"{package} differs in {name}.txt: run `make lock`"


@pytest.mark.parametrize("package", sorted(FLAWED))
def test_floors_shut_out_flawed_versions(package: str) -> None:
    need = next(need for need in wanted()["run"] if need.name == package)
    version, why = FLAWED[package]
    assert not need.specifier.contains(Version(version)), why


def test_every_runtime_dependency_has_a_floor() -> None:
    for need in wanted()["run"] + wanted()["embedded"] + wanted()["build"]:
        assert any(part.operator in {">=", "==", "~="} for part in need.specifier), need


GOOD = "a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize(
    "text",
    [
        "a==1.0\n",
        "a>=1.0 \\\n    --hash=sha256:" + "0" * 64,
        "a==1.0 \\\n    --hash=md5:" + "0" * 32,
        "--index-url x\n",
        "-e .\n",
        "a @ file.whl\n",
    ],
)
def test_a_bad_line_is_found(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "x.txt"
    lock.write_text(GOOD + text)
    with pytest.raises(ValueError, match=r"x\.txt"):
        entries(lock)


def test_a_good_line_is_read(tmp_path: Path) -> None:
    lock = tmp_path / "x.txt"
    lock.write_text("# made\n" + GOOD.replace("a==1.0", "A_b==1.0 ; sys_platform == 'linux'"))
    assert entries(lock)["a-b"][0] == "1.0"
