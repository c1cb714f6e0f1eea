"""The admin address of a gateway, for commands that ask it; and what is wrong with an address that is none."""

from __future__ import annotations

from contextlib import suppress

import httpx

from gateway.cli import CommandError
from gateway.cli.configured import configuration
from gateway.config import Config, ConfigError, config_file

_TIMEOUT_S = 5.0
NOTHING, _ALIVE = b"not found\n", b"alive\n"
"""The answers to everybody of an admin address at a path that it lacks, which no other address gives, and of
each of them at `/livez`."""
_NO_ADMIN = (
    "the configuration has no metrics.listen, the admin address: add `metrics: {listen: 127.0.0.1:9090}` and restart "
    "the gateway"
)


def admin_address(given: str | None, config: Config | None, option: str) -> str:
    """The admin address: the one that `option` gave, or else that of `config`. Raises CommandError."""
    if given is not None or config is None:
        given = given or ""
        if not given.startswith(("http://", "https://")):
            raise CommandError(f"{option} must begin with http:// or https://")
        try:
            httpx.URL(given)
        except httpx.InvalidURL as error:
            raise CommandError(f"{option} is not a URL: {error}") from None
        return given.rstrip("/")
    if config.metrics.listen is None:
        raise CommandError(f"{_NO_ADMIN}; or give {option}")
    host, _, port = config.metrics.listen.rpartition(":")
    return _here(host, port)


def not_admin(url: str, given: str | None, option: str) -> str | None:
    """A sentence about `url`, where something answers that is not an admin address: which one is, if that is known;
    None if it is one. given: the configuration that the command was given, if it was; option: the one that gives
    another address."""
    asked = httpx.URL(url)
    base = f"{asked.scheme}://{asked.netloc.decode()}"
    if _answers(f"{base}/nothing", NOTHING):
        return None
    if not _answers(f"{base}/livez", _ALIVE):
        return f"{base} is not the admin address of a gateway, which is its metrics.listen"
    config, clients = _configured(given), f"{base} is where clients connect (listen.port)"
    if config is None or config.listen.port != asked.port:
        return f"{clients}; give {option} the address of metrics.listen in the gateway's configuration"
    if config.metrics.listen is None:
        return f"{clients}, and {_NO_ADMIN}"
    return f"{clients}; the admin address is metrics.listen: give {option} {admin_address(None, config, option)}"


def no_answer(url: str, why: str, given: str | None) -> str:
    """A sentence about the admin address `url`, where nothing answers; and about its gateway, if that runs. given: as
    above."""
    config, what = _configured(given), f"no answer from {url}: {why}"
    if config is not None and config.metrics.listen is not None and url.startswith(admin_address(None, config, "")):
        clients = _here(config.listen.host, str(config.listen.port))
        if _answers(f"{clients}/livez", _ALIVE):
            return f"{what}; the gateway at {clients} was started with another metrics.listen: restart it"
    return f"{what}; does a gateway run with this metrics.listen?"


def _here(host: str, port: str) -> str:
    """Listening on every address is listening on this machine's own."""
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def _answers(url: str, wanted: bytes) -> bool:
    """Asks without any key."""
    try:
        return httpx.get(url, timeout=_TIMEOUT_S, trust_env=False).content == wanted
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def _configured(given: str | None) -> Config | None:
    """None if there is no configuration, or none that is good."""
    if given is None and config_file() is None:
        return None
    with suppress(ConfigError):
        return configuration(given, only=())[0]
    return None
