"""Commands need the secrets that they use, and no others: an operator's machine has not those of the gateways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import called
from tests.support.ports import free_port
from tests.support.redis_server import Server

# Sections whose secrets and files nobody has here.
ABSENT: dict[str, Any] = {
    "keys_file": "absent/keys.yaml",
    "admins_file": "absent/admins.yaml",
    "cache_salt": {"secret_env": "ABSENT_SALT", "by": "team"},
    "seal": {"secret_file": "absent/seal"},
    "jwt": {"issuer": "https://id.example", "audience": "d", "jwks_file": "absent/keys.json"},
    "budget_webhook": {"url": "https://hook.example", "secret_env": "ABSENT_HOOK"},
    "keys_store": "redis",
    "spend": {"daily": True},
    "console": {"enabled": True, "key_env": "ABSENT_CONSOLE"},
}


def written(folder: Path, server: str, admin: int, **more: Any) -> str:
    file = folder / "gateway.yaml"
    worker = {"backend": "vllm", "workers": ["https://127.0.0.1:1"], "ca_file": "absent/ca.pem"}
    own = {"models": {"m": {**worker, "api_key_env": "ABSENT_WORKER"}}, "metrics": {"listen": f"127.0.0.1:{admin}"}}
    file.write_text(json.dumps({**ABSENT, **own, "redis": {"addresses": [server], "timeout_s": 10}, **more}))
    return str(file)


def test_each_of_them_is_missed_by_the_gateway(tmp_path: Path) -> None:
    found = called("check", written(tmp_path, "127.0.0.1:1", 1))
    assert found.returncode == 2
    wanted = (
        "keys_file",
        "admins_file",
        "cache_salt",
        "seal",
        "jwks_file",
        "budget_webhook",
        "console",
        "ca_file",
        "api_key",
    )
    for name in wanted:
        assert name in found.stdout + found.stderr, name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("limits", "show"), "no limit applies"),
        (("spend",), "cost in"),
        (("status", "--once"), "no answer from http://127.0.0.1"),
        (("keys", "list"), "no answer from http://127.0.0.1"),
        (("explain", "--model", "m"), "worker: https://127.0.0.1:1"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_command_needs_the_secrets_that_it_uses(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "admin.key").write_text("key")
    (tmp_path / "body").write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}))
    more = {"keys": ["--key-file", "admin.key"], "status": ["--key-file", "admin.key"], "explain": ["--body", "body"]}
    with Server(tmp_path) as server:
        # The keys file is read for the team of a key that is named.
        keys = {"keys_file": "keys.yaml"} if words[0] == "limits" else {}
        (tmp_path / "keys.yaml").write_text("")
        file = written(tmp_path, server.address, free_port(), **keys)
        found = called(*words, "--config", file, *more.get(words[0], []), folder=tmp_path)
    assert "absent" not in (found.stdout + found.stderr).lower(), found.stderr
    assert said in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("words", "option", "section"),
    [
        (("status", "--once"), "console.key_env", {}),
        (("spend",), "redis.password_env", {"redis": {"addresses": ["127.0.0.1:1"], "password_env": "ABSENT_REDIS"}}),
        (
            ("limits", "show"),
            "redis.password_env",
            {"redis": {"addresses": ["127.0.0.1:1"], "password_env": "ABSENT_REDIS"}},
        ),
        (("limits", "show"), "end_users.secret_env", {"end_users": {"secret_env": "ABSENT_USERS"}}),
        (("limits", "show"), "keys_file", {}),
    ],
)
def test_a_secret_that_a_command_uses_is_missed(
    tmp_path: Path, words: tuple[str, ...], option: str, section: dict[str, Any]
) -> None:
    file = written(tmp_path, "127.0.0.1:1", free_port(), **section)
    found = called(*words, "--config", file)
    assert found.returncode == 2
    assert option in found.stderr
