"""The admin API of a running gateway, as commands call it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from gateway.cli import CommandError
from gateway.cli.admin_address import NOTHING, admin_address, no_answer, not_admin
from gateway.cli.configured import FILE_HELP, config_option, configuration, key_in

_TIMEOUT_S = 30.0
_TRIES = 5
_RETRY_S = 0.5
"""Between tries; where the answer has a Retry-After, that, up to `_MOST_RETRY_S`."""
_MOST_RETRY_S = 5.0
_PAGE = 500


def admin_options(action: argparse.ArgumentParser, alone: bool) -> None:
    """Adds the options by which a command finds the API. alone: the command has no other argument."""
    action.add_argument(
        "--gateway", metavar="URL", help="its admin address (default: the configuration's metrics.listen)"
    )
    if alone:
        config_option(action)
    else:
        action.add_argument("--config", metavar="FILE", help=FILE_HELP)
    action.add_argument("--key-file", metavar="FILE", required=True, help="the admin's key")


class AdminApi:
    """The admin API of the gateway that the options name. Calls raise CommandError."""

    def __init__(self, options: argparse.Namespace) -> None:
        key = key_in(options.key_file)
        config = configuration(options.config, only=())[0] if options.gateway is None else None
        base = admin_address(options.gateway, config, "--gateway") + "/admin/v1"
        self._given = options.config
        headers = {"authorization": f"Bearer {key}"}
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, base_url=base, headers=headers)

    def close(self) -> None:
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        once: str = "",
        absent: bool = False,
        query: Mapping[str, str] = {},
    ) -> Any:
        """The answer. All that commands send may be sent again: they make secrets themselves, and name a creation by
        `once`. absent: None for what is not there."""
        headers = {"idempotency-key": once} if once else {}
        for last in (*[False] * (_TRIES - 1), True):
            try:
                answer = self._client.request(method, path, json=body, params=query, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if last or isinstance(error, httpx.InvalidURL):
                    base = str(self._client.base_url)
                    raise CommandError(no_answer(base, type(error).__name__, self._given), 1) from None
                time.sleep(_RETRY_S)
                continue
            if answer.status_code < 500 or last:
                break
            time.sleep(_retry_s(answer))
        if answer.is_success:
            return answer.json()
        if absent and answer.status_code == 404 and answer.content != NOTHING:
            return None
        try:
            problem = answer.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            problem = ""
        if answer.content == NOTHING:
            problem = "the gateway has no admins (docs/keys.md)"
        elif (what := not_admin(str(self._client.base_url), self._given, "--gateway")) is not None:
            problem = what
        raise CommandError(problem or f"it answers {answer.status_code}", 1)

    def pages(self, path: str, what: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """All entries. what: the member of a page that has them."""
        after: str | None = ""
        while after is not None:
            page = self.call("GET", path, query={"limit": str(_PAGE), "after": after, **query})
            yield from page[what]
            after = page["next"]


def _retry_s(answer: httpx.Response) -> float:
    after = answer.headers.get("retry-after", "")
    return min(float(after), _MOST_RETRY_S) if after.isdecimal() else _RETRY_S
