"""Proxies to workers: the environment is followed only where the configuration says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError, load, plain_secrets
from gateway.config.proxies import proxy_of, variables

ENVIRON = {
    "HTTPS_PROXY": "http://me:a%20secret@p:1",
    "http_proxy": "q:2",
    "HTTP_PROXY": "http://other",
    "NO_PROXY": "",
    "BARE": "me:a%20secret@p:1",
}


@pytest.mark.parametrize(
    ("address", "left_out", "proxied"),
    [
        ("https://w.example", "", True),
        ("https://w.example", "*", False),
        ("https://w.example", "other, w.example", False),
        ("https://w.example", "example", False),
        ("https://w.example", ".EXAMPLE", False),
        ("https://w.example", "*.example", False),
        ("https://w.example", "ample", True),
        ("https://w.example", "a.w.example", True),
        ("https://w.example", "w.example:443", False),
        ("https://w.example", "w.example:8443", True),
        ("https://w.example:8443/base", "w.example:8443", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "11.0.0.0/8", True),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://[fd00::1]", "fd00::/8", False),
        ("https://[fd00::1]:8443", "[fd00::1]:8443", False),
        ("https://[fd00::1]:8443", "[fd00::1]:443", True),
        ("https://w.example", ",,", True),
    ],
)
def test_hosts_that_are_left_out(address: str, left_out: str, proxied: bool) -> None:
    found = proxy_of(address, {"https_proxy": "p:1", "no_proxy": left_out})
    assert found == ("http://p:1" if proxied else None)


def test_the_worker_s_scheme_decides_and_lower_case_goes_first() -> None:
    found = variables(ENVIRON)
    assert proxy_of("https://w", found) == ENVIRON["HTTPS_PROXY"]
    assert proxy_of("http://w", found) == "http://q:2"
    assert proxy_of("https://w", variables({"ALL_PROXY": "p:3"})) == "http://p:3"


def read(folder: Path, option: str, environ: dict[str, str]) -> str | None:
    (folder / "gateway.yaml").write_text(f"models: {{m: {{backend: b, workers: [https://w]{option}}}}}\n")
    config = load(folder / "gateway.yaml", environ=environ)
    assert "secret" not in repr(config)
    proxy = config.models["m"].proxy_for("https://w")
    assert ("a%20secret" in [*plain_secrets(config)]) == ("secret" in (proxy or ""))
    return proxy


@pytest.mark.parametrize(
    ("option", "proxy"),
    [
        ("", None),
        (", proxy: environment", ENVIRON["HTTPS_PROXY"]),
        (", proxy_env: HTTPS_PROXY", ENVIRON["HTTPS_PROXY"]),
        (", proxy_env: BARE", "http://me:a%20secret@p:1"),
        (", proxy: 'http://p:9'", "http://p:9"),
    ],
)
def test_only_what_the_configuration_says(option: str, proxy: str | None, tmp_path: Path) -> None:
    assert read(tmp_path, option, ENVIRON) == proxy


def test_a_proxy_of_the_environment_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, ", proxy: environment", {"ALL_PROXY": "socks5://me:canary@p:1"})
    (fault,) = caught.value.faults
    assert "models.m.proxy: leads to a text that must be http://" in str(fault)
    assert "canary" not in str(fault)
