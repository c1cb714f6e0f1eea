"""Gateways where people log in by a provider, and the browsers of people."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.core.sealing import Sealing
from gateway.wire.sealed import Seal
from tests.support.harness import Stack
from tests.support.standins.identity import CLIENT, SECRET, Identity
from tests.unit.app.asking import CHAT, key
from tests.unit.features.console.opened import CONSOLE_KEY

SESSION_SECRET = "s" * 32
ENVIRON = {"CONSOLE_KEY": CONSOLE_KEY, "CLIENT": SECRET, "SESSIONS": SESSION_SECRET}
ROLES = {"claim": "groups", "admin": ["ops"], "lead": ["leads"], "team_claim": "team", "viewer": ["staff"]}
CHANGE = {"x-dragoman-console": "1"}
BLUE, BLUE_ENTRY = key("blue-key", team="blue")
RED, RED_ENTRY = key("red-key", team="red")
ADMIN: dict[str, Any] = {"groups": ["ops", "staff"]}
LEAD: dict[str, Any] = {"groups": ["leads"], "team": "blue"}
VIEWER: dict[str, Any] = {"groups": "staff"}


def sections(issuer: str, **oidc: Any) -> dict[str, Any]:
    options = {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret_env": "CLIENT",
        "url": "http://127.0.0.1:9090/ops",
        "roles": ROLES,
        "session_secret_env": "SESSIONS",
        **oidc,
    }
    return {
        "keys": {**BLUE_ENTRY, **RED_ENTRY},
        "metrics": {"listen": "127.0.0.1:9090"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY", "oidc": options},
    }


class Browser:
    """One with a jar of its own. The address that the configuration names is that of a proxy: paths lose `/ops`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.jar: dict[str, str] = {}
        self.set: list[str] = []

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if self.jar:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        reply = httpx.request(method, self.stack.admin_url + path, headers=headers, timeout=30, **more)
        self.set = reply.headers.get_list("set-cookie")
        for one in self.set:
            name, _, value = one.partition(";")[0].partition("=")
            self.jar[name] = value
            if "Max-Age=0" in one:
                del self.jar[name]
        return reply

    def get(self, path: str) -> Any:
        reply = self("GET", path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def begin(self, query: str = "") -> str:
        led = self("GET", f"/console/login{query}", headers={"sec-fetch-site": "same-origin"})
        assert led.status_code == 302, led.text
        return led.headers["location"]

    def back(self, address: str) -> httpx.Response:
        parts = urlsplit(address)
        assert address.startswith("http://127.0.0.1:9090/ops/console/callback?")
        path = parts.path.removeprefix("/ops")
        return self("GET", f"{path}?{parts.query}", headers={"sec-fetch-site": "cross-site"})

    def login(self, id_: Identity, **claims: Any) -> httpx.Response:
        return self.back(id_.login(self.begin(), **claims))


def ask(stack: Stack, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30).status_code


PLAYED = {"path": "/v1/chat/completions", "body": json.dumps(CHAT), "key": BLUE}


def sealed(id_: Identity, session: list[Any], secret: str = SESSION_SECRET, use: bytes = b"console session") -> str:
    sealing = Sealing(f"console {id_.url} {CLIENT}", secret.encode())
    return Seal(lambda: sealing, use).close(json.dumps(session))
