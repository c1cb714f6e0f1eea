"""Callers of the admin API."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import hash_of

PATH = "/admin/v1"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def config(server: Server, **sections: Any) -> dict[str, Any]:
    return {
        "keys_store": "redis",
        "keys": {"own": {"hash": hash_of("configured")}},
        "admins": {
            "root": {"hash": hash_of("root-key")},
            "lead": {"hash": hash_of("lead-key"), "teams": ["blue", "green"]},
        },
        "metrics": {"listen": "127.0.0.1:1"},
        "redis": {"addresses": [server.address], "timeout_s": 10},
        **sections,
    }


class Caller:
    def __init__(self, stack: Stack, key: str) -> None:
        self._stack = stack
        self.headers = {"authorization": f"Bearer {key}"}

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return httpx.request(method, self._stack.admin_url + PATH + path, json=body, headers=headers, **more)

    def made(self, name: str, **options: Any) -> str:
        answer = self("POST", "/keys", {"name": name, **options})
        assert answer.status_code == 201, answer.text
        key: str = answer.json()["key"]
        return key


def status(stack: Stack, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers).status_code


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]
