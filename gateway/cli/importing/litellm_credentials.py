"""Secrets of LiteLLM's configuration: gateway.yaml names the variable or the file that holds one, never the secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gateway.cli.importing.drafts import Draft
from gateway.config.faults import masked

ENVIRONMENT = "os.environ/"
_SECRET = re.compile(r"key|token|secret|auth|password|cookie|credential", re.I)


class Credentials:
    """The secrets of one configuration. look_up returns a variable of the environment, for addresses that stand there.
    listed: the section credential_list."""

    def __init__(self, draft: Draft, look_up: Callable[[str], str | None], listed: list[Any]) -> None:
        self._draft, self._look_up = draft, look_up
        self._files: dict[str, str] = {}
        self._named: dict[str, dict[str, Any]] = {
            str(one.get("credential_name")): one["credential_values"]
            for one in listed
            if isinstance(one, dict) and isinstance(one.get("credential_values"), dict)
        }

    def named(self, name: object) -> dict[str, Any]:
        """The options that an entry of credential_list has."""
        return self._named.get(str(name), {})

    def value(self, written: str) -> str | None:
        """An address, looked up if it stands in the environment."""
        if written.startswith(ENVIRONMENT):
            return self._look_up(written.removeprefix(ENVIRONMENT))
        return written

    def secret(self, option: str, written: str | None, what: str, name: str) -> dict[str, str]:
        """The option for a secret, which never stands in the file."""
        if written is None or written.lower() in ("none", "empty", ""):
            return {}
        if written.startswith(ENVIRONMENT):
            variable = written.removeprefix(ENVIRONMENT)
            self._draft.todo[f"set {variable} in the gateway's environment"] = None
            return {f"{option}_env": variable}
        if written not in self._files:
            plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:60].strip(".") or "secret"
            number = sum(file.startswith(f"{plain}.") for file in self._files.values())
            self._files[written] = f"{plain}.{number}.key" if number else f"{plain}.key"
            self._draft.todo[f"write {what} to the file {self._files[written]}, beside gateway.yaml"] = None
        return {f"{option}_file": self._files[written]}


def may_be_secret(name: str, value: object) -> bool:
    text = f"{name} {json.dumps(value, default=str)}"
    return _SECRET.search(text) is not None or ENVIRONMENT in text or masked(text) != text
