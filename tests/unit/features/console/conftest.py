"""Gateways with a console, for tests of this folder, and people who log in to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.config import has_feature
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.standins.identity import Identity, identity
from tests.unit.auth.stored_keys import hash_of
from tests.unit.features.console.logging_in import ENVIRON, Browser, sections
from tests.unit.features.console.opened import OPEN


@pytest.fixture(scope="module")
def local() -> Iterator[Stack]:
    with Stack(config=OPEN) as stack:
        yield stack


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def identities() -> Iterator[Identity]:
    with identity() as found:
        yield found


@pytest.fixture
def id_(identities: Identity) -> Iterator[Identity]:
    """The provider, which is as it was again after the test."""
    before = (identities.key, identities.kid, identities.algorithm, dict(identities.keys), dict(identities.described))
    yield identities
    identities.key, identities.kid, identities.algorithm, identities.keys, identities.described = before
    identities.claims, identities.answers, identities.userinfo = {}, {}, {}


@pytest.fixture(scope="module")
def stack(identities: Identity, server: Server) -> Iterator[Stack]:
    own = sections(identities.url) | {"redis": {"addresses": [server.address], "timeout_s": 10}}
    own |= {"limits": [{"name": "few", "kind": "requests", "limit": 1, "match": {"key": ["red-key"]}}]}
    own |= {
        "budgets": [{"name": "whole", "amount": 1000, "scope": []}, {"name": "each", "amount": 9, "scope": ["team"]}]
    }
    own |= {"spend": {"daily": True, "currency": "EUR"}, "models": {"m": {"price": {"request": 1}}}}
    if has_feature("admin"):
        own["keys_store"] = "redis"
        own["admins"] = {"root": {"hash": hash_of("root-key")}}
    with Stack(config=own, environ=ENVIRON) as stack:
        yield stack


@pytest.fixture
def browser(stack: Stack) -> Browser:
    return Browser(stack)


@pytest.fixture
def entered(browser: Browser, id_: Identity) -> Callable[..., Browser]:
    def enter(**claims: Any) -> Browser:
        reply = browser.login(id_, **claims)
        assert reply.status_code == 200, reply.text
        return browser

    return enter
