"""A sealed text opens for a caller if and only if the same tenant sealed it, on every gateway with the same
configuration: whatever headers carried the key, and however the caller authenticated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from typing import Any

import pytest
import yaml
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec.structs import replace

from gateway.auth import ANONYMOUS, Keyring, KeyTable, Principal, new_key, sealing
from gateway.auth.headers import KEY_HEADERS
from gateway.config import Config, Jwt, Key, Seal
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.sealing import Sealing, secret_name
from gateway.wire.sealed import Seal as Sealed
from tests.unit.auth.stored_keys import hash_of, stored
from tests.unit.auth.test_jwt import made, token

NAMES = ("a", "b", "alone", "expiring")
KEYS = {name: new_key(name) for name in NAMES}
FOREIGN = b"made-elsewhere-0123456789"
PAIR, PAIR_SECRET = "AKIDEXAMPLE", "w" * 40
TEAMS = {"a": "red", "b": "red", "expiring": "blue", "pair": "blue"}
PLACES = (b"authorization", *sorted(KEY_HEADERS))


def entry(name: str, **more: Any) -> Key:
    return Key.model_validate({**yaml.safe_load(KEYS[name][1])[name], "team": TEAMS.get(name), **more})


def config(seal: str | None = None, **changed: Key | None) -> Config:
    pair = Key(aws_access_key_id=PAIR, aws_secret_env="S", team="blue").holding({"aws_secret": PAIR_SECRET})
    keys = {"a": entry("a"), "b": entry("b"), "alone": entry("alone"), "pair": pair, **changed}
    keys["expiring"] = entry("expiring", expires="2999-01-01")
    return Config(
        keys={name: key for name, key in keys.items() if key is not None},
        seal=Seal(secret_env="X").holding({"secret": seal}) if seal else None,
        jwt=Jwt(issuer="https://id", audience="x", jwks_file="x"),
    )


def gateway(found: Config) -> Keyring:
    """A gateway of a deployment: each has a ring of its own."""
    return Keyring(found, time.time, made(team_claim="org"))


def signed() -> Headers:
    asked = AWSRequest("POST", "http://gateway/x", data=b"", headers={})
    SigV4Auth(Credentials(PAIR, PAIR_SECRET), "sagemaker", "eu-west-1").add_auth(asked)
    prepared = asked.prepare()
    found = [(name.lower().encode(), str(value).encode()) for name, value in prepared.headers.items()]
    return [(b"host", b"gateway"), *((name, value.removeprefix(b"b'").removesuffix(b"'")) for name, value in found)]


def heads() -> Iterator[Headers]:
    """All combinations of the headers that carry keys: absent, empty, or with one of several keys."""
    values = (None, b"", KEYS["a"][0].encode(), KEYS["b"][0].encode(), KEYS["alone"][0].encode(), b"wrong")
    for chosen in product(values, repeat=len(PLACES)):
        yield [
            (place, (b"Bearer " if place == b"authorization" else b"") + value)
            for place, value in zip(PLACES, chosen, strict=True)
            if value is not None
        ]
    yield [(b"authorization", b"Bearer " + KEYS["expiring"][0].encode())]
    for claims in ({}, {"org": "red"}, {"org": "blue"}, {"sub": "alone"}, {"sub": "bob"}):
        yield [(b"authorization", b"Bearer " + token(**claims))]
    yield signed()


def callers(ring: Keyring) -> list[Principal]:
    """Whoever gets in, once for each distinct principal and head's form."""
    found = []
    for headers in heads():
        try:
            found.append(ring.identify(headers).principal)
        except GatewayError:
            continue
    return found


def close(who: Principal) -> str:
    return Sealed(who.sealing, b"use").close("hm")


def opens(who: Principal, text: str) -> bool:
    return Sealed(who.sealing, b"use").open(text) == "hm"


@pytest.mark.parametrize("seal", [None, "s" * 32])
def test_a_text_opens_if_and_only_if_the_same_tenant_sealed_it(seal: str | None) -> None:
    one, other = (callers(gateway(config(seal))) for _ in range(2))
    assert len(one) == len(other) > 40
    by_name = [{who.key: who for who in found} for found in (one, other)]
    assert {"a", "b", "alone", "expiring", "pair", "jwt:alice", "jwt:alone", "jwt:bob"} == set(by_name[0])
    tenants = {who.tenant.partition("\n")[0] for who in one}
    assert tenants > {"team red", "team blue", "key alone", "key jwt:alone"}
    # The headers play no part: all heads of one key and one tenant give the same text.
    texts = {(who.key, who.tenant, close(who)) for who in [*one, *other]}
    assert len(texts) == len({text[:2] for text in texts})
    readers = {(who.key, who.tenant): who for who in other}.values()
    for _, tenant, text in texts:
        assert [who.key for who in readers if opens(who, text) != (who.tenant == tenant)] == []


def test_what_an_earlier_version_sealed_for_a_key_without_a_team_opens() -> None:
    who, other = (gateway(config()).identify([(b"api-key", KEYS[one][0].encode())]).principal for one in ("alone", "a"))
    before = who.sealing()
    text = Sealed(lambda: Sealing("key alone", before.secret), b"use").close("hm")
    assert opens(who, text)
    assert not opens(other, text)
    assert close(who) != text


def test_it_stays_readable_while_keys_are_exchanged() -> None:
    """A new key beside the old one: the text of either opens for both. Other keys come and go without effect."""
    before = gateway(config())
    old = before.identify([(b"api-key", KEYS["a"][0].encode())]).principal
    text = close(old)
    rotating = gateway(config(more=Key.model_validate({**entry("alone").model_dump(), "hash": "sha256:" + "1" * 64})))
    assert opens(rotating.identify([(b"api-key", KEYS["b"][0].encode())]).principal, text)
    after = gateway(config(alone=None))
    assert opens(after.identify([(b"api-key", KEYS["b"][0].encode())]).principal, text)
    without = gateway(config(a=None)).identify([(b"api-key", KEYS["b"][0].encode())]).principal
    assert not opens(without, text), "the key that sealed it is not known any more"
    common = close(gateway(config("s" * 32)).identify([(b"api-key", KEYS["a"][0].encode())]).principal)
    without = gateway(config("s" * 32, a=None)).identify([(b"api-key", KEYS["b"][0].encode())]).principal
    assert opens(without, common), "a common secret does not depend on keys"


@pytest.mark.parametrize("kind", ["token", "weak"])
def test_without_a_strong_secret_only_this_process_opens_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weak = {"weak": Key(hash="sha256:" + sha256(FOREIGN).hexdigest())}

    def who(seal: str | None) -> Principal:
        ring = gateway(config(seal, **weak))
        return ring.identify([(b"authorization", b"Bearer " + (token() if kind == "token" else FOREIGN))]).principal

    text, common = close(who(None)), close(who("s" * 32))
    assert opens(who(None), text)
    monkeypatch.setattr(sealing, "PROCESS_SECRET", b"x" * 32)
    assert not opens(who(None), text)
    assert opens(who("s" * 32), common)


def test_where_everybody_may_call_all_are_one_caller() -> None:
    ring = Keyring(Config(auth="open"))
    found = {close(ring.identify(headers).principal) for headers in heads()}
    assert found == {close(ANONYMOUS)}


def test_texts_of_a_key_of_the_store_outlive_its_secrets_and_itself() -> None:
    key = stored("app", "first")
    table = KeyTable(Config(keys_store="redis"), [replace(key, id="abcd")])
    first = table.sealing.of("app")
    assert first == bytes.fromhex(hash_of("first").removeprefix("sha256:"))
    table.put(replace(key, id="efgh", hash=hash_of("second")))
    assert table.sealing.of("app") == first
    table.put(replace(key, id="efgh", revoked=1.0))
    assert table.sealing.find(secret_name(first)) == first
    table.put(stored("weak", "guessed"))
    assert table.sealing.of("weak") == table.sealing.of(""), "made elsewhere, it has no id"


def test_a_configured_key_keeps_its_secret_beside_a_revoked_one_of_its_name() -> None:
    configured = replace(stored("a", "revoked", id="abcd"), revoked=1.0)
    found = config(a=entry("a", log_prompts_until="2999-01-01"))
    table, alone = KeyTable(found, [configured]), KeyTable(found)
    own, revoked = alone.sealing.of("a"), bytes.fromhex(configured.seal.removeprefix("sha256:"))
    assert own == bytes.fromhex(KEYS["a"][1].partition("sha256:")[2][:64])
    for change in (lambda: None, lambda: table.put(configured), lambda: table.forget("a")):
        change()
        assert table.sealing.of("a") == own
        assert [table.sealing.find(secret_name(one)) for one in (own, revoked)] == [own, revoked]
        assert table.logged == alone.logged
        assert "a" in table.logged
    common = KeyTable(config("s" * 32), [configured]).sealing
    assert common.find(secret_name(revoked)) is None
