"""Tokens of an identity provider: what is believed, what is not, and what a caller may then do."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.app import KNOWN
from gateway.auth import JwtVerifier, Keyring, new_key, read_keys
from gateway.auth.jwt import Fetch, claim_of
from gateway.config import CacheSalt, Config, ConfigError, Jwt, Key, Model, load
from gateway.core.errors import GatewayError, Kind
from tests.support.clients import CHAT
from tests.support.harness import Stack

RSA, OTHER = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://id.example", "dragoman"
URL = "https://id.example/keys"
BY_URL = Jwt(issuer=ISSUER, audience=AUDIENCE, jwks_url=URL)
DAY_S = 86_400  # some tokens are made when tests are collected, long before they are read


def keys(**private: Any) -> str:
    found = []
    for kid, key in private.items():
        algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        found.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid})
    return json.dumps({"keys": [*found, {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}]})


def token(key: Any = RSA, kid: str | None = "r", algorithm: str = "RS256", **claims: Any) -> bytes:
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + DAY_S, **claims}
    whole = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(whole, key, algorithm, {"kid": kid} if kid else None).encode()


def made(text: str = keys(r=RSA, e=EC), clock: Callable[[], float] = time.time, **options: Any) -> JwtVerifier:
    section = Jwt(issuer=ISSUER, audience=AUDIENCE, jwks_file="keys.json", **options)
    return JwtVerifier(section.holding({"keys_text": text}), clock)


def answering(answers: list[str | Exception]) -> Fetch:
    """What a provider answers, one after the other, each time its keys are asked for."""

    async def fetch(url: str) -> str:
        assert url == URL
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return fetch


def test_both_algorithms_and_a_set_of_one_key_without_id() -> None:
    tokens = made(team_claim="org", models_claim="models")
    bearer = tokens.read(token(org="red", models=["m"]))
    assert (bearer.subject, bearer.team, bearer.models) == ("alice", "red", frozenset({"m"}))
    assert tokens.read(token(EC, "e", "ES256", models="m n")).models == frozenset({"m", "n"})
    assert tokens.read(token()).models == frozenset(), "no claim, no model"
    assert made(keys(r=RSA)).read(token(kid=None)).models is None


def test_the_algorithm_that_a_key_names_is_its_only_one() -> None:
    (listed,) = json.loads(keys(r=RSA))["keys"][:1]
    both = [{**listed, "alg": "RS256"}, {**listed, "alg": "PS256"}]
    for shown, good, bad in (
        (both[1:], "PS256", "RS256"),
        (both[:1], "RS256", "PS256"),
        (both, "RS256", "PS256"),
        (both[::-1], "RS256", "PS256"),
    ):
        tokens = made(json.dumps({"keys": shown}))
        assert tokens.read(token(algorithm=good)).subject == "alice"
        with pytest.raises(GatewayError, match="not valid"):
            tokens.read(token(algorithm=bad))
    for name in ("RS512", "HS256", "none", "", ["RS256"], None):
        with pytest.raises(ValueError, match="for signatures"):
            read_keys(json.dumps({"keys": [{**listed, "alg": name}]}))


ROLES_URL = "https://example.com/roles"
NESTED = {
    "realm_access": {"roles": ["a"]},
    "resource_access": {"my.app": {"roles": ["b"]}, "my": {"app": {"roles": ["c"]}}},
    ROLES_URL: ["d"],
    "x.y": ["e"],
    "x": {"y": ["f"], "z": None, "n": "text"},
    "https://example": {"com/roles": ["g"]},
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("realm_access.roles", ["a"]),
        ("resource_access.my.app.roles", ["b"]),
        (ROLES_URL, ["d"]),
        ("x.y", ["e"]),
        ("x.n", "text"),
        ("x.n.more", None),
        ("x.z", None),
        ("realm_access.", None),
        (".roles", None),
        ("roles", None),
        ("." * 200, None),
    ],
)
def test_a_claim_is_found_by_its_name_and_then_by_its_path(name: str, found: Any) -> None:
    assert claim_of(NESTED, name) == found


def test_teams_models_and_roles_may_be_in_objects() -> None:
    tokens = made(team_claim="org.name", models_claim="access.models", roles_claim="realm_access.roles")
    nested: dict[str, Any] = {
        "org": {"name": "red"},
        "access": {"models": ["m"]},
        "realm_access": {"roles": ["dragoman-admin"]},
    }
    bearer = tokens.read(token(**nested))
    assert (bearer.team, bearer.models, bearer.roles) == ("red", frozenset({"m"}), frozenset({"dragoman-admin"}))


def shared() -> bytes:
    """Signed with the public key as if it were a shared secret; PyJWT itself would not make one."""
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"r","typ":"JWT"}').rstrip(b"=")
    stem = head + b"." + token().split(b".")[1]
    return stem + b"." + base64.urlsafe_b64encode(hmac.digest(public, stem, "sha256")).rstrip(b"=")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(token(iss="https://id.example.evil"), id="issuer"),
        pytest.param(token(iss="https://id"), id="part of the issuer"),
        pytest.param(token(aud="other"), id="audience"),
        pytest.param(token(exp=time.time() - 60), id="expired"),
        pytest.param(token(exp=None), id="without an end"),
        pytest.param(token(sub=None), id="without a subject"),
        pytest.param(token(sub="a b\nc"), id="subject that would break a log"),
        pytest.param(token(sub="\ud800"), id="subject that is no text"),
        pytest.param(token(sub="\x9b31m"), id="subject that colours a terminal"),
        pytest.param(token(exp=10**400), id="an end beyond numbers"),
        pytest.param(token(exp=str(int(time.time()) + DAY_S)), id="an end in words"),
        pytest.param(token(exp=True), id="an end that is no number"),
        pytest.param(token(nbf=time.time() + DAY_S), id="not yet"),
        pytest.param(token(OTHER), id="another key"),
        pytest.param(token(kid="gone"), id="unknown key"),
        pytest.param(token(kid="shared"), id="a shared secret's id"),
        pytest.param(shared(), id="signed with the public key"),
        pytest.param(token(EC, "r", "ES256"), id="of another kind than its key"),
        pytest.param(token(None, "r", "none"), id="unsigned"),
        pytest.param(token()[:-4] + b"AAAA", id="changed"),
        pytest.param(b"eyJ.a.b", id="nonsense"),
        pytest.param(b"eyJ" + b"a" * 9000 + b"..", id="long"),
    ],
)
def test_what_is_not_believed(bad: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        made().read(bad)
    assert caught.value.kind is Kind.UNAUTHENTICATED
    assert bad[:10].decode() not in caught.value.message


def test_a_remembered_token_still_expires() -> None:
    later = 0
    tokens = made(clock=lambda: time.time() + later)
    alive = token(exp=time.time() + 5)
    assert tokens.read(alive).subject == "alice"
    later = 60
    with pytest.raises(GatewayError, match="expired"):
        tokens.read(alive)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x", "is not JSON"),
        ("", "is not JSON"),
        ("[]", "is not a set of keys (RFC 7517)"),
        ("[" * 100_000, "is not a set of keys (RFC 7517)"),
        ('{"keys": "a"}', "is not a set of keys (RFC 7517)"),
        ('{"keys": []}', "holds no RSA key of 2048 bits or more and no P-256 key for signatures"),
    ],
    ids=lambda one: one[:10],
)
def test_a_file_of_no_keys_is_refused_with_the_configuration(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    path = tmp_path / "gateway.yaml"
    section = f"jwt:\n  issuer: {ISSUER}\n  audience: {AUDIENCE}\n  jwks_file: keys.json\n"
    path.write_text(section + "models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, KNOWN, {})
    assert str(caught.value) == f"{path}:4: jwt.jwks_file: names a file that {wrong}"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": [1]}', '{"keys": []}', '{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}']
)
def test_what_is_no_key_set(text: str) -> None:
    with pytest.raises(ValueError):
        read_keys(text)


@pytest.mark.parametrize("size", [512, 1024, 2047])
def test_short_rsa_keys_are_not_used(size: int) -> None:
    if size == 512:  # the library makes none, yet a provider may show one
        public = {"kty": "RSA", "n": base64.urlsafe_b64encode(b"\xc1" * 64).decode().rstrip("="), "e": "AQAB"}
        short = json.dumps({"keys": [public]})
    else:
        short = keys(r=rsa.generate_private_key(public_exponent=65537, key_size=size))
    with pytest.raises(ValueError, match="2048 bits"):
        read_keys(short)
    both = json.loads(keys(r=RSA))["keys"] + json.loads(short)["keys"]
    assert set(read_keys(json.dumps({"keys": both}))) == {"r"}


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"key_ops": ["verify"]}, True),
        ({"key_ops": ["sign", "verify"]}, True),
        ({"key_ops": ["encrypt"]}, False),
        ({"key_ops": []}, False),
        ({"key_ops": ["wrapKey"], "use": "sig"}, False),
        ({"use": "enc"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [RSA, EC], ids=["RSA", "EC"])
def test_what_a_key_is_for_counts(key: Any, options: dict[str, Any], used: bool) -> None:
    listed = json.loads(keys(r=key))["keys"]
    text = json.dumps({"keys": [{**listed[0], **options}]})
    if used:
        assert set(read_keys(text)) == {"r"}
    else:
        with pytest.raises(ValueError, match="for signatures"):
            read_keys(text)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256")])
def test_of_a_private_key_the_public_half_counts(key: Any, algorithm: str) -> None:
    kind: Any = RSAAlgorithm if algorithm == "RS256" else ECAlgorithm
    tokens = made(json.dumps({"keys": [{**json.loads(kind.to_jwk(key)), "kid": "r"}]}))
    assert tokens.read(token(key, "r", algorithm)).subject == "alice"
    with pytest.raises(GatewayError, match="not valid"):
        tokens.read(token(OTHER))


async def test_keys_from_a_url_outlive_a_reload_while_it_is_away() -> None:
    before = JwtVerifier(BY_URL, time.time)
    before._keys = read_keys(keys(r=RSA))  # as if they had been fetched
    for url, known in ((URL, True), ("https://other.example/keys", False)):
        after = JwtVerifier(Jwt(issuer=ISSUER, audience=AUDIENCE, jwks_url=url), time.time, before=before)
        await after.start(answering([OSError("away")]))
        if known:
            assert after.read(token()).subject == "alice"
        else:
            with pytest.raises(GatewayError, match="could not be read yet"):
                after.read(token())
        await after.close()


@pytest.mark.parametrize(
    "trouble", [OSError("away"), socket.gaierror(socket.EAI_AGAIN, "no name server"), TimeoutError()]
)
async def test_no_token_is_blamed_while_keys_were_never_read(trouble: Exception) -> None:
    tokens, fetch = JwtVerifier(BY_URL, time.time), answering([trouble, keys(r=RSA), trouble])
    await tokens.start(fetch)
    with pytest.raises(GatewayError) as caught:
        tokens.read(token())
    assert (caught.value.kind, caught.value.code) == (Kind.OVERLOADED, "identity_unavailable")
    assert caught.value.retry_after
    with pytest.raises(GatewayError) as caught:
        tokens.read(b"eyJ.no.token")
    assert caught.value.kind is Kind.UNAUTHENTICATED
    for _ in range(2):
        await tokens.refresh(fetch, URL)
        assert tokens.read(token()).subject == "alice"
    with pytest.raises(GatewayError) as caught:
        tokens.read(token(OTHER, "other"))
    assert caught.value.kind is Kind.UNAUTHENTICATED
    await tokens.close()


def test_clients_are_told_to_come_again_while_keys_were_never_read() -> None:
    section = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://127.0.0.1:1/keys"}
    with Stack(config={"auth": "keys", "jwt": section}) as stack:
        answer = httpx.post(
            stack.url + "/v1/chat/completions",
            headers={"authorization": f"Bearer {token().decode()}"},
            json={"model": "m", "messages": [{"role": "user", "content": "hello"}]},
            timeout=30,
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_unavailable")
    assert answer.headers["retry-after"] == "10"


async def test_keys_from_a_url_are_read_again_and_kept_while_it_is_away() -> None:
    told: list[str] = []
    tokens = JwtVerifier(BY_URL, time.time, lambda level, what: told.append(level))
    fetch = answering([keys(r=RSA), OSError("away"), keys(r=OTHER)])
    await tokens.start(fetch)
    assert tokens.read(token()).subject == "alice"
    await tokens.refresh(fetch, URL)
    assert tokens.read(token()).subject == "alice"
    await tokens.refresh(fetch, URL)
    assert told == ["warning", "info"]
    assert tokens.read(token(OTHER)).subject == "alice"
    with pytest.raises(GatewayError):
        tokens.read(token())
    await tokens.close()


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "other"}, "the token is for another audience"),
        ({"iss": "https://other"}, "the token is from another issuer"),
        ({"exp": 1}, "the token has expired"),
        ({"exp": str(int(time.time()) + DAY_S)}, "the token's claim 'exp' must be a number"),
        ({"nbf": time.time() + DAY_S}, "the token is not valid yet"),
        ({"sub": None}, "the token has no claim 'sub'"),
        ({"org": "Team Red"}, "the token's claim 'org' must be 1 to 200 characters without spaces"),
        ({"org": []}, "the token's claim 'org' must be one name"),
        ({"org": [1]}, "the token's claim 'org' must be one name"),
        ({"org": {}}, "the token's claim 'org' must be one name"),
        ({"org": True}, "the token's claim 'org' must be one name"),
        ({"models": {"m": 1}}, "the token's claim 'models' must be a list of models"),
    ],
)
def test_who_has_a_signed_token_is_told_what_is_wrong_with_it(claims: dict[str, Any], why: str) -> None:
    tokens = made(team_claim="org", models_claim="models")
    with pytest.raises(GatewayError) as caught:
        tokens.read(token(**claims))
    assert caught.value.message.startswith(why)
    with pytest.raises(GatewayError) as caught:
        tokens.read(token(OTHER, **claims))
    assert caught.value.message == "the token is not valid", "nobody else is told anything"


async def test_an_unknown_key_has_the_set_read_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then at the latest when others would have been told to wait for minutes."""
    monkeypatch.setattr("gateway.auth.jwt._RETRY_S", 0.0)
    tokens, reads = JwtVerifier(BY_URL, time.time), asyncio.Queue[None]()
    monkeypatch.setattr(tokens, "_announce", lambda trouble: reads.put_nowait(None))
    await tokens.start(answering([keys(r=RSA), keys(new=OTHER)]))
    await reads.get()
    with pytest.raises(GatewayError, match="not signed by a known key"):
        tokens.read(token(OTHER, "new"))
    await asyncio.wait_for(reads.get(), 30)
    assert tokens.read(token(OTHER, "new")).subject == "alice"
    assert reads.empty(), "nobody is unknown any more"
    await tokens.close()


def test_callers_with_a_token_have_their_teams_salt() -> None:
    key, entry = new_key("k", "red")
    config = Config(
        keys={"k": Key.model_validate(yaml.safe_load(entry)["k"])},
        models={"m": Model(backend="vllm", workers=("http://127.0.0.1:1",))},
        cache_salt=CacheSalt(secret_env="X"),
    )
    keyring = Keyring(config, verifier=made(team_claim="org"))

    def salt(text: str) -> str | None:
        return keyring.identify([(b"authorization", b"Bearer " + text.encode())]).principal.salt

    alice, bob = (salt(token(sub=name, org="red").decode()) for name in ("alice", "bob"))
    assert salt(key) == alice == bob
    alone = {salt(token(sub=name).decode()) for name in ("alice", "bob")}
    assert len({alice, *alone}) == 3


def test_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(keys(r=RSA))
    section = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(tmp_path / "keys.json")}
    limits = [{"name": "requests", "kind": "requests", "limit": 2}]
    config = {"jwt": {**section, "team_claim": "org", "models_claim": "models"}, "limits": limits}
    with Stack(({},), config) as stack:

        def ask(**claims: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {token(**claims).decode()}"}
            return httpx.post(stack.url + "/v1/chat/completions", headers=headers, json={"model": "m", **CHAT})

        good = ask(models=["alias"], org="red")
        assert (good.status_code, good.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        record = stack.record()
        assert (record["key"], record["team"]) == ("jwt:alice", "red")
        assert ask(models=["other"]).status_code == 404
        assert ask(aud="other").status_code == 401
        assert httpx.get(stack.url + "/v1/models").status_code == 401
        (tmp_path / "keys.json").write_text('{"keys": []}')
        with pytest.raises(ConfigError, match="holds no RSA"):
            stack.run(stack.gateway.reload(stack.config()))
        assert ask(models=["m"], sub="bob").status_code == 200
