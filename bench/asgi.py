"""`python -m bench.asgi`: the CPU time of a request at the gateway's own server, and under uvicorn as Starlette's.

Each server runs in a process of its own, beside one simulated worker. One connection sends requests, one after the
other. The figure is the CPU time of the server's process for each request, the least of several runs in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import tempfile
from pathlib import Path

from bench.process import BenchError, Process, Stopped, cpu_seconds, free_port

_BODY = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}], "max_tokens": 10}


def measured(port: int, pid: int, requests: int, stream: bool) -> float:
    """CPU microseconds for each request."""
    body, headers = json.dumps({**_BODY, "stream": stream}), {"content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    began = 0.0
    for number in range(requests + 100):
        Stopped.check()
        if number == 100:  # warm
            began = cpu_seconds(pid)
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        if reply.status != 200 or not reply.read():
            raise BenchError(f"a reply of status {reply.status}")
    connection.close()
    return (cpu_seconds(pid) - began) / requests * 1e6


def main() -> None:
    Stopped.watch()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as exits:
        folder = Path(name)
        worker, own, other = free_port(), free_port(), free_port()
        models = {"m": {"backend": "vllm", "workers": [f"http://127.0.0.1:{worker}"]}}
        config = {"listen": {"port": own}, "log": {"requests": False}, "models": models}
        (folder / "gateway.yaml").write_text(json.dumps(config))
        os.environ["DRAGOMAN_CONFIG"] = str(folder / "gateway.yaml")
        dragoman = str(Path(sys.executable).with_name("dragoman"))

        def started(name: str, port: int, *command: str, path: str = "/readyz") -> Process:
            process = Process(name, command, os.sched_getaffinity(0), folder / f"{port}.log")
            exits.callback(process.stop)
            process.wait_ready(f"http://127.0.0.1:{port}{path}", 60)
            return process

        at_once = "--itl-ms", "0", "--prefill-us-per-token", "0"
        simulated = dragoman, "worker", "simulated", "--port", str(worker), "--model", "m", *at_once
        started("worker", worker, *simulated, path="/health")
        uvicorn = sys.executable, "-m", "uvicorn", "gateway.asgi:app", "--port", str(other), "--no-access-log"
        servers = {
            "dragoman serve": (own, started("serve", own, dragoman, "serve")),
            "uvicorn gateway.asgi:app": (other, started("uvicorn", other, *uvicorn)),
        }
        for stream in (False, True):
            least = dict.fromkeys(servers, float("inf"))
            for _ in range(given.rounds):
                for name, (port, process) in servers.items():
                    found = measured(port, process.popen.pid, given.requests, stream)
                    least[name] = min(least[name], found)
            for name, spent in least.items():
                print(f"{'stream' if stream else 'whole':7} {name:25} {spent:6.0f} µs of CPU", flush=True)


if __name__ == "__main__":
    main()
