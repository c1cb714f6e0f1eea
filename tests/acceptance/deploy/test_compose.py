"""deploy/compose.yaml: its parts exist, fit together, and are confined."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway import cli
from gateway.app import KNOWN
from gateway.config import Config, load
from tests.repo.tree import ROOT

FOLDER = ROOT / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = ("gateway", "worker")
# Where each service listens, in the network of compose.
LISTENS = {"gateway": {8080, 9090}, "worker": {8000}, "valkey": {6379}, "prometheus": {9090}, "grafana": {3000}}


@pytest.fixture
def config() -> Config:
    return load(FOLDER / "compose" / "gateway.yaml", KNOWN)


def mounts() -> list[tuple[str, str, str]]:
    """(service, source, place in the container) of every mount."""
    found = []
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source, place = mount.split(":")[:2]
            found.append((name, source, place))
    return found


def test_everything_that_is_mounted_exists() -> None:
    volumes = set(COMPOSE["volumes"])
    sources = {source for _, source, _ in mounts()} - volumes
    assert [source for source in sources if not (FOLDER / source).exists()] == []


def test_images_are_those_of_this_version_and_of_the_chart() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {SERVICES[name]["image"] for name in OWN} == {f"dragoman/gateway:{version}", f"dragoman/embedded:{version}"}
    valkey = yaml.safe_load((ROOT / "helm" / "dragoman" / "values.yaml").read_text())["redis"]["valkey"]["image"]
    assert SERVICES["valkey"]["image"] == f"{valkey['repository']}:{valkey['tag']}"


@pytest.mark.parametrize("name", list(SERVICES))
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")] == []
    assert {int(port.rpartition(":")[2]) for port in service.get("ports", ())} <= LISTENS[name]


def test_the_gateway_finds_its_neighbours(config: Config) -> None:
    assert cli.main(["check", str(FOLDER / "compose" / "gateway.yaml")]) == 0
    (model,) = config.models.values()
    assert config.redis is not None
    places = [urlsplit(model.workers[0]), urlsplit(str(config.redis.url))]
    assert [(place.hostname, place.port or 6379) for place in places] == [("worker", 8000), ("valkey", 6379)]
    assert SERVICES["worker"]["command"][-1] in config.models
    assert {config.listen.port, int(str(config.metrics.listen).rpartition(":")[2])} == LISTENS["gateway"]


def test_what_the_gateway_knows_outlives_a_restart(config: Config) -> None:
    """Its folder is on a volume, which has the owner that the folder has in the image."""
    folder = config.start.known_folder
    assert folder is not None
    volumes = {place: source for name, source, place in mounts() if name == "gateway" and source in COMPOSE["volumes"]}
    (place,) = [place for place in volumes if folder.startswith(f"{place}/")]
    lines = (FOLDER / "gateway.Containerfile").read_text().splitlines()
    made = lines.index(f"RUN mkdir -m 0700 {place} && chown 65532:65532 {place}")
    assert made < lines.index("USER 65532:65532")


def test_the_gateway_gets_its_time_to_drain(config: Config) -> None:
    grace = SERVICES["gateway"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= config.relay.drain_s + 8


def test_prometheus_scrapes_what_there_is() -> None:
    jobs = yaml.safe_load((FOLDER / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target.split(":") for job in jobs for one in job["static_configs"] for target in one["targets"]]
    assert [(name, port) for name, port in targets if int(port) not in LISTENS[name]] == []
    assert {name for name, _ in targets} == set(OWN)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: apt-get install prometheus)")
def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    alerts = next(source for _, source, place in mounts() if place == "/etc/prometheus/alerts")
    text = (FOLDER / "compose" / "prometheus.yml").read_text()
    assert "/etc/prometheus/alerts/" in text
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alerts", str((FOLDER / alerts).resolve())))
    words = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_reads_prometheus_and_the_charts_dashboards() -> None:
    provisioning = FOLDER / "compose" / "grafana"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    place = urlsplit(source["url"])
    assert place.hostname is not None
    assert place.port in LISTENS[place.hostname]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dragoman.yaml").read_text())["providers"]
    assert ("grafana", "../helm/dragoman/dashboards", provider["options"]["path"]) in mounts()
