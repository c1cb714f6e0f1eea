"""deploy/dragoman.service: systemd takes every line of it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import cli
from gateway.config import Config
from tests.repo.tree import ROOT

UNIT = (ROOT / "deploy" / "dragoman.service").read_text()


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser documents it
    unit.read_string(UNIT)
    return unit["Service"]


def verified(folder: Path, text: str) -> tuple[int, str]:
    """What `systemd-analyze verify` says of a unit, whose program is made to be one that is here."""
    path = folder / "dragoman.service"
    path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: apt-get install systemd)"
)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    assert verified(tmp_path, UNIT) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("UMask=", "UMaks=", "UMaks"),
        ("KillMode=mixed", "KillMode=gently", "gently"),
        ("@system-service", "@no-such-set", "@no-such-set"),
        ("After=network-online.target", "After=network-online.tagret", "tagret"),
    ],
)
def test_systemd_says_what_is_wrong(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    assert right in UNIT
    assert said in verified(tmp_path, UNIT.replace(right, wrong))[1]


@pytest.mark.parametrize(
    ("page", "option"),
    [("batches", "directory"), ("production", "start.known_folder")],
)
def test_the_folders_of_the_pages_can_be_written_to(service: configparser.SectionProxy, page: str, option: str) -> None:
    found = re.search(rf"\b{option}: (/[^\s`]+)", (ROOT / "docs" / f"{page}.md").read_text())
    assert found is not None
    assert service["ProtectSystem"] == "strict"
    assert Path(found[1]).is_relative_to(Path("/var/lib", service["StateDirectory"]))


def test_the_unit_starts_what_there_is_and_waits_for_the_drain(service: configparser.SectionProxy) -> None:
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "dragoman"
    assert cli.parser(arguments).parse_args(arguments).config == "/etc/dragoman/gateway.yaml"
    assert "ExecStartPre" not in service, "RestartPreventExitStatus is of the main process alone"
    assert service["RestartPreventExitStatus"] == "2"
    assert int(service["TimeoutStopSec"]) >= Config().relay.drain_s + 8
