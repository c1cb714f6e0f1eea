"""What deploy/compose.yaml shows, asked of it wherever it runs: in processes or in Pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.harness import until

TOKENS = 300
"""Those of a stream: fewer than the workers' replies have by their commands."""


class Shown:
    """url, admin_url  where clients and admins call. secrets  the folder that compose/secrets.sh made."""

    def __init__(self, url: str, admin_url: str, secrets: Path) -> None:
        self.url, self.admin_url, self._secrets = url, admin_url, secrets

    def secret(self, name: str) -> str:
        return (self._secrets / f"{name}.key").read_text()

    def chat(self, model: str, secret: str | None = None) -> httpx.Response:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        body = {"model": model, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=300)

    def made_key(self, name: str) -> str:
        """A key that an admin makes at run time."""
        headers = {"authorization": f"Bearer {self.secret('admin')}"}
        made = httpx.post(f"{self.admin_url}/admin/v1/keys", json={"name": name}, headers=headers, timeout=60)
        assert made.is_success, made.text
        return str(made.json()["key"])

    def ready(self) -> dict[str, int]:
        """By model, its workers that are ready, as the console reads it."""
        headers = {"authorization": f"Bearer {self.secret('console')}"}
        state = httpx.get(f"{self.admin_url}/status.json", headers=headers, timeout=60).json()
        return {
            model["name"]: sum(worker["condition"] == "ready" for worker in model["workers"])
            for model in state["models"]
        }

    def metrics(self) -> str:
        return httpx.get(f"{self.admin_url}/metrics", timeout=60).text

    def stream_goes_on(self, model: str, workers: Mapping[str, str], kill: Callable[[str], None]) -> str:
        """Kills the worker of a stream, which must come whole all the same. workers: the model's, by name, with their
        addresses. Returns the name of the one that was killed."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body["messages"] = [{"role": "user", "content": "Tell me all of it."}]
        headers = {"authorization": f"Bearer {self.secret('app')}"}
        busy = ""
        lines: list[str] = []
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=300) as reply:
            for line in filter(None, reply.iter_lines()):
                lines.append(line)
                if len(lines) == 20:
                    (busy,) = [name for name, url in workers.items() if _runs_one(url)]
                    kill(busy)
        assert lines[-1] == "data: [DONE]"
        usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
        assert usage["completion_tokens"] == TOKENS, usage
        until(lambda: "\ndragoman_continued_total{" in self.metrics())
        return busy


def _runs_one(url: str) -> bool:
    page = httpx.get(f"{url}/metrics", timeout=60).text
    (running,) = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
    return float(running.rpartition(" ")[2]) == 1
