"""Configurations with a console, and its key."""

from __future__ import annotations

from typing import Any

from tests.unit.app.asking import key

CONSOLE_KEY = "console-key-console-key"
SHOWN = {"authorization": f"Bearer {CONSOLE_KEY}"}
SECRET, ENTRY = key("team-a", team="blue")
LOCAL: dict[str, Any] = {"metrics": {"listen": "127.0.0.1:9090"}}
OPEN: dict[str, Any] = {**LOCAL, "console": {"enabled": True}}
KEYED: dict[str, Any] = {**LOCAL, "keys": ENTRY, "console": {"enabled": True, "key_env": "CONSOLE_KEY"}}
ENVIRON = {"CONSOLE_KEY": CONSOLE_KEY}
