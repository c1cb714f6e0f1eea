"""Hosts in options: what is written as an address must be one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.config import kinds
from gateway.config.proxies import proxy_url
from tests.unit.config.reading import SMALL, faults, read

FORMS = ("http://{}", "http://{}:1", "http://{}:1/v1/keys", "{}:1", "redis://{}:1/2", "{}")
BAD = (
    "256.1.1.1",
    "1.2.3.4.5",
    "10.1",
    "2130706433",
    "1..2",
    "1.2.3.4.",
    "010.1.1.1",
    "[1:2]",
    "[::1::]",
    "[fffff::1]",
)


adapter: Any = cache(TypeAdapter)


def takes(kind: Any, text: str) -> bool:
    try:
        adapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


def of_addresses(kind: Any, form: str) -> bool:
    """Whether it takes hosts in this form: names and addresses, but not with a bracket alone or any text at all."""
    good = ("worker-1.example", "127.0.0.1", "[::1]")
    return all(takes(kind, shape(form, host)) for host in good) and not takes(kind, form.format("[::1"))


def shape(form: str, host: str) -> str:
    return form.format(host if form != "{}" else host.strip("[]"))


KINDS = {name: kind for name, kind in vars(kinds).items() if get_args(kind)[:1] == (str,)}
TAKEN = [(name, form) for name, kind in KINDS.items() for form in FORMS if of_addresses(kind, form)]


def test_kinds_that_have_a_host_are_found() -> None:
    found = {name for name, _ in TAKEN}
    assert found == {
        "Address", "CollectorUrl", "Host", "IssuerUrl", "KeySetUrl", "Origin", "ProxyUrl", "RedisUrl", "ServiceUrl",
        "WorkerUrl",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "form"), TAKEN)
def test_an_address_that_is_none_is_refused(name: str, form: str) -> None:
    for host in BAD:
        assert not takes(KINDS[name], shape(form, host)), host
    for host in ("0.0.0.0", "255.255.255.255", "[fd00::1:2]", "1and1.example", "1.2.3.com"):
        assert takes(KINDS[name], shape(form, host)), host


def test_the_fault_names_line_and_option(tmp_path: Path) -> None:
    assert faults(tmp_path, f"{SMALL}    proxy: http://256.1.1.1\n") == [
        "gateway.yaml:5: models.small.proxy: must have a host name, or a valid address such as 10.0.0.1 or [::1]"
    ]
    assert read(tmp_path, f"{SMALL}    proxy: http://10.1.1.1\n").models["small"].proxy == "http://10.1.1.1"


@pytest.mark.parametrize("host", BAD)
def test_proxies_of_files_and_of_the_environment(host: str) -> None:
    with pytest.raises(ValueError, match="must be http"):
        proxy_url(f"user:secret@{host}:3128")
