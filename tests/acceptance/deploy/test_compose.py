"""deploy/compose.yaml: its parts exist, fit together, and are confined."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from gateway import cli
from gateway.app import KNOWN
from gateway.config import Config, load
from tests.acceptance.deploy.shown import Shown
from tests.repo.tree import ROOT
from tests.support.daemon import Daemon
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.redis_server import Server

FOLDER = ROOT / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = ("small-1", "small-2", "large-1", "large-2")
OWN = ("gateway", "traffic", *WORKERS)
# Where each service listens, in the network of compose.
LISTENS = {
    "gateway": {8080, 9090},
    "valkey": {6379},
    "prometheus": {9090},
    "grafana": {3000},
    "traffic": set(),
    **{name: {8000} for name in WORKERS},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of deploy/compose, with secrets."""
    copied = tmp_path_factory.mktemp("deploy") / "compose"
    shutil.copytree(FOLDER / "compose", copied, ignore=shutil.ignore_patterns("secrets"))
    subprocess.run(["sh", str(copied / "secrets.sh")], check=True, timeout=60)
    return copied


@pytest.fixture
def config(folder: Path) -> Config:
    return load(folder / "gateway.yaml", KNOWN)


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
    assert {SERVICES[name]["image"] for name in OWN} == {f"dragoman/gateway:{version}"}
    assert [
        one["image"] for one in SERVICES.values() if one["image"].endswith(":latest") or ":" not in one["image"]
    ] == []
    valkey = yaml.safe_load((ROOT / "helm" / "dragoman" / "values.yaml").read_text())["redis"]["valkey"]["image"]
    assert SERVICES["valkey"]["image"] == f"{valkey['repository']}:{valkey['tag']}"


@pytest.mark.parametrize("name", list(SERVICES))
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("user", "65532").startswith("0")
    assert "healthcheck" in service or name == "traffic"  # it serves nobody
    assert [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")] == []
    assert {int(port.rpartition(":")[2]) for port in service.get("ports", ())} <= LISTENS[name]


def test_the_gateway_finds_its_neighbours(config: Config, folder: Path) -> None:
    assert cli.main(["check", str(folder / "gateway.yaml")]) == 0
    found = {url: name for name, model in config.models.items() for url in model.workers}
    assert found == {f"http://{name}:8000": option(SERVICES[name]["command"], "--model") for name in WORKERS}
    for name, model in config.models.items():
        assert {option(SERVICES[f"{name}-{at}"]["command"], "--slots") for at in (1, 2)} == {str(model.max_in_flight)}
    assert config.redis is not None
    place = urlsplit(str(config.redis.url))
    assert (place.hostname, place.port) == ("valkey", 6379)
    assert {config.listen.port, int(str(config.metrics.listen).rpartition(":")[2])} == LISTENS["gateway"]


def option(command: Sequence[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_every_secret_is_made_and_has_its_readers(folder: Path, config: Config) -> None:
    """One of an admin reaches no container."""
    declared = {name: one["file"].removeprefix("./compose/") for name, one in COMPOSE["secrets"].items()}
    assert [file for file in declared.values() if not (folder / file).read_text()] == []
    given: dict[str, dict[str, str]] = {}
    for name, service in SERVICES.items():
        for one in service.get("secrets", ()):
            source = one if isinstance(one, str) else one["source"]
            given.setdefault(source, {})[name] = one["target"] if isinstance(one, dict) else f"/run/secrets/{one}"
    at = "/etc/dragoman/secrets"
    assert given == {
        "keys": {"gateway": f"{at}/keys.yaml"},
        "admins": {"gateway": f"{at}/admins.yaml"},
        "console": {"gateway": f"{at}/console.key"},
        "app": {"traffic": SERVICES["traffic"]["entrypoint"][-1]},
        "grafana": {"grafana": SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"]},
    }
    assert declared.keys() == given.keys()
    assert [(key.team, name) for name, key in config.keys.items()] == [("demo", "app")]
    assert [*config.admins] == ["admin"]
    assert len({file.read_text() for file in (folder / "secrets").glob("*.key")}) == 4
    assert (folder / "secrets").stat().st_mode & 0o777 == 0o700, "nobody else on the machine reads them"
    again = subprocess.run(["sh", str(folder / "secrets.sh")], capture_output=True, timeout=60)
    assert again.returncode != 0, "secrets are not replaced"


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
    assert {name for name, _ in targets} == {"gateway", *WORKERS}


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
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dragoman.yaml").read_text())["providers"]
    assert ("grafana", "../helm/dragoman/dashboards", provider["options"]["path"]) in mounts()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    boards = [*(ROOT / "helm" / "dragoman" / "dashboards").glob("*.json")]
    assert home in {f"{provider['options']['path']}/{board.name}" for board in boards}
    for board in boards:
        # Each asks the source that is chosen in its head: the default one of this type, or one by its name here.
        found = json.loads(board.read_text())
        (chosen,) = [one for one in found["templating"]["list"] if one["name"] == "datasource"]
        assert (chosen["type"], chosen["query"]) == ("datasource", source["type"])
        assert set(sources_of(found)) <= {"${datasource}", source["uid"], "-- Grafana --"}


def sources_of(part: Any) -> Iterator[str]:
    """The sources of data that a dashboard names."""
    if isinstance(part, list):
        for one in part:
            yield from sources_of(one)
    elif isinstance(part, dict):
        if isinstance(source := part.get("datasource"), dict):
            yield source["uid"]
        for one in part.values():
            yield from sources_of(one)


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="needs docker compose",
)
def test_compose_takes_the_file() -> None:
    words = ["docker", "compose", "--file", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# -- what it shows, in processes instead of containers --------------------------------------------------------------


class Started(Daemon):
    """A service's command as a process of this machine. One that listens at `port`."""

    def __init__(self, directory: Path, port: int, *words: str) -> None:
        super().__init__(directory, port)
        self._words = words

    def words(self) -> Sequence[str]:
        return (sys.executable, *self._words)


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[tuple[Shown, dict[str, Started]]]:
    """The gateway, its workers, which answer faster, and Valkey, by the files of compose but for names and ports."""
    with ExitStack() as exits:

        def room(name: str) -> Path:
            (made := folder.parent / name).mkdir()
            return made

        valkey = exits.enter_context(Server(room("valkey"), "--appendonly", "yes"))
        workers = {}
        for name in WORKERS:
            command = list(SERVICES[name]["command"])
            command[command.index("--host") + 1] = "127.0.0.1"
            command[command.index("--itl-ms") + 1] = "5"
            port = free_port()
            one = Started(room(name), port, "-m", "gateway.cli", *command, "--port", str(port))
            workers[name] = exits.enter_context(one)
        port, admin_port = free_port(), free_port()
        text = (folder / "gateway.yaml").read_text()
        for name, one in workers.items():
            text = text.replace(f"http://{name}:8000", f"http://{one.address}")
        text = text.replace("0.0.0.0:9090", f"127.0.0.1:{admin_port}").replace("0.0.0.0", f"127.0.0.1\n  port: {port}")
        text = text.replace("valkey:6379", valkey.address).replace("/var/lib/dragoman", str(room("gateway")))
        (folder / "gateway.yaml").rename(folder / "gateway.as-it-was.yaml")
        (folder / "gateway.yaml").write_text(text)
        words = ("-m", "gateway.cli", "serve", "--config", str(folder / "gateway.yaml"))
        exits.enter_context(Started(folder.parent / "gateway", port, *words))
        shown = Shown(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", folder / "secrets")
        until(lambda: httpx.get(f"{shown.admin_url}/readyz").status_code == 200)
        yield shown, workers
        (folder / "gateway.as-it-was.yaml").replace(folder / "gateway.yaml")


@pytest.mark.long
def test_it_shows_keys_the_console_and_a_stream_that_goes_on(up: tuple[Shown, dict[str, Started]]) -> None:
    shown, workers = up
    assert shown.chat("small").status_code == 401
    assert [shown.chat(model, shown.secret("app")).status_code for model in ("small", "large")] == [200, 200]
    until(lambda: shown.chat("small", made).status_code == 200 if (made := shown.made_key("friend")) else False)
    page = httpx.get(f"{shown.admin_url}/console", follow_redirects=True)
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)
    until(lambda: shown.ready() == {"small": 2, "large": 2})  # a state stands for a moment
    large = {name: f"http://{one.address}" for name, one in workers.items() if name.startswith("large")}
    killed = shown.stream_goes_on("large", large, lambda name: workers[name].kill())
    until(lambda: shown.ready() == {"small": 2, "large": 1})
    workers[killed].start()
    until(lambda: shown.ready() == {"small": 2, "large": 2})


def test_the_clients_ask_both_models_until_they_are_stopped(folder: Path) -> None:
    keys = yaml.safe_load((folder / "secrets" / "keys.yaml").read_text())
    with Stack(config={"keys": keys, "models": {"m": {"aliases": ["small", "large"]}}}) as stack:

        def asked(model: str) -> bool:
            return any(f" to {model}?".encode() in one.body for one in stack.sim.entries)

        words = [sys.executable, str(folder / "traffic.py"), stack.url, str(folder / "secrets" / "app.key")]
        running = subprocess.Popen(words)
        try:
            until(lambda: asked("small") and asked("large"))
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert {line["team"] for line in stack.records()} == {"demo"}
