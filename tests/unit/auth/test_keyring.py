"""Keys: what is a key, where it may stand, who it is, and what a wrong one is told."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.auth import (
    ANONYMOUS,
    Absent,
    JwtVerifier,
    Keyring,
    KeyTable,
    Principal,
    find_key,
    keyring,
    keys,
    new_key,
)
from gateway.auth.keys import checksum, well_formed
from gateway.config import CacheSalt, Config, Jwt, Key, Model, Team, load
from gateway.config.sharing import KeyMatch, Seal
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers
from gateway.wire import sealed
from tests.unit.auth.stored_keys import stored


def fixed_key(id_: str, secret: str) -> str:
    """A well-formed key that is the same in every process, as the names of parametrised tests must be."""
    stem = f"dgm_{id_}_{secret:0>43}"
    return f"{stem}_{checksum(stem.encode()).decode()}"


KEY = fixed_key("team0000a1", "zQ7canaryKpLmR3vXy81BcDfGhJ")
OTHER = fixed_key("team0000b2", "Wm4otherNnTt5sS6uU7wW8yY9aA")
FOREIGN = "sk-made-elsewhere-0123456789"
MODELS = {
    "small": Model(backend="openai", workers=("http://127.0.0.1:8081",), aliases=("mini",)),
    "large": Model(backend="openai", workers=("http://127.0.0.1:8082",)),
}


def entry(key: str, **options: object) -> Key:
    found = re.match(r"dgm_([0-9a-z]+)_", key)
    return Key.model_validate(
        {"hash": "sha256:" + sha256(key.encode()).hexdigest(), "id": found[1] if found else None, **options}
    )


def ring(now: float = 0.0, **keys: Key) -> Keyring:
    return Keyring(Config(keys=keys, models=MODELS), lambda: now)


def bearer(key: str | bytes, scheme: bytes = b"Bearer ") -> Headers:
    return [(b"host", b"x"), (b"authorization", scheme + (key.encode() if isinstance(key, str) else key))]


def refusal(keyring: Keyring, headers: Headers, dialect: str | None = None) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        keyring.identify(headers, dialect)
    assert caught.value.blame is Blame.CLIENT
    return caught.value


RING = ring(team_a=entry(KEY), elsewhere=entry(FOREIGN))
RING_OF_THREE = ring(a=entry(KEY, team="one"), b=entry(OTHER, team="one"), c=entry(FOREIGN))


# ---- where a key may stand


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (b"authorization", b"Bearer ", b""),
        (b"authorization", b"bearer ", b""),
        (b"authorization", b"BEARER  ", b" "),
        (b"authorization", b"Bearer\t", b""),
        (b"authorization", b"Bearer: ", b""),
        (b"authorization", b"bearer:", b""),
        (b"api-key", b"", b""),
        (b"api-key", b" ", b" "),
        (b"x-api-key", b"", b""),
    ],
)
@pytest.mark.parametrize("key", [KEY, FOREIGN], ids=["ours", "foreign"])
def test_every_place_of_a_key(name: bytes, before: bytes, after: bytes, key: str) -> None:
    headers = [(b"accept", b"*/*"), (name, before + key.encode() + after)]
    assert RING.identify(headers).principal.key == ("team_a" if key == KEY else "elsewhere")


PLACES: Headers = [(b"authorization", b"Bearer "), (b"api-key", b""), (b"x-api-key", b"")]


@pytest.mark.parametrize(
    "places", [*permutations(PLACES, 2)], ids=lambda two: "+".join(name.decode() for name, _ in two)
)
def test_the_same_key_twice_is_one_and_different_ones_are_none(places: Headers) -> None:
    (one, before), (two, behind) = places
    assert RING.identify([(one, before + KEY.encode()), (two, behind + KEY.encode())]).principal.key == "team_a"
    for first, second in ((KEY, OTHER), (OTHER, KEY), (KEY, "x"), (KEY, KEY + "x"), (KEY, KEY.upper())):
        error = refusal(RING, [(one, before + first.encode()), (two, behind + second.encode())])
        assert error.kind is Kind.UNAUTHENTICATED
        assert "different API keys" in error.message


def test_a_repeated_authorization_is_refused_even_when_equal() -> None:
    assert "sent twice" in refusal(RING, bearer(KEY) * 2).message
    assert "sent twice" in refusal(RING, bearer(KEY) + bearer(b"", b"Basic x")).message
    assert "different" in refusal(RING, [(b"api-key", KEY.encode()), (b"api-key", OTHER.encode())]).message


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"x"), (b"cookie", KEY.encode()), (b"x-authorization", b"Bearer " + KEY.encode())],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"api-key", b""), (b"x-api-key", b"  ")],
    ],
)
def test_no_key(headers: Headers) -> None:
    error = refusal(RING, headers)
    assert error.kind is Kind.UNAUTHENTICATED
    assert "'Authorization: Bearer', 'api-key' or 'x-api-key'" in error.message
    assert RING.identify([(b"api-key", KEY.encode()), *headers]).principal.key == "team_a"


@pytest.mark.parametrize(
    "value",
    [b"Basic dXNlcjpwYXNz", KEY.encode(), b"Bearer" + KEY.encode(), b"Bearer " + KEY.encode() + b", Bearer x",
     b"Bearer a b", b"Bearer\n" + KEY.encode(), b"Token " + KEY.encode()],
)  # fmt: skip
def test_other_schemes_hold_no_key(value: bytes) -> None:
    error = refusal(RING, [(b"authorization", value)])
    assert error.kind is Kind.UNAUTHENTICATED
    assert KEY not in error.message
    # A proxy's own credentials do not stand in the way of a key beside them.
    assert RING.identify([(b"authorization", value), (b"api-key", KEY.encode())]).principal.key == "team_a"


@given(
    st.lists(st.tuples(st.sampled_from([b"authorization", b"api-key", b"x-api-key", b"host"]), st.binary()), max_size=4)
)
def test_no_header_leads_to_anything_but_a_refusal(headers: Headers) -> None:
    with pytest.raises(GatewayError) as caught:
        RING.identify(headers)
    assert caught.value.kind is Kind.UNAUTHENTICATED


@given(st.binary(max_size=80))
def test_find_key_returns_what_stands_there(value: bytes) -> None:
    stripped = value.strip()
    assert find_key([(b"api-key", value)]) == (stripped or None)


# ---- who it is


@pytest.mark.parametrize("team", [None, (), ("small",), ("mini", "large"), ("other",)])
@pytest.mark.parametrize("own", [None, (), ("small", "large"), ("gone",)])
def test_a_key_uses_no_model_that_its_team_may_not(own: tuple[str, ...] | None, team: tuple[str, ...] | None) -> None:
    keys, teams = {"a": entry(KEY, team="search", models=own)}, {"search": Team(models=team)}
    caller = Keyring(Config(keys=keys, models=MODELS, teams=teams)).identify(bearer(KEY)).principal
    asked = ("small", "large", "other", "gone")
    names = {"mini": "small"}
    bounds = [{names.get(one, one) for one in bound} for bound in (own, team) if bound is not None]
    usable = set(asked).intersection(*bounds)
    assert {model for model in asked if caller.may_use(model)} == usable
    assert caller.usable == (None if own is None and team is None else set.intersection(*bounds))


def test_a_principal_carries_what_its_entry_says() -> None:
    keyring = ring(a=entry(KEY, team="search", models=["mini", "large"], dialects=["openai"], priority=5))
    principal = keyring.identify(bearer(KEY), "openai").principal
    assert principal.connections == 9000, "nine tenths of those that there are"
    plain = replace(principal, secrets=None, identity="", connections=None)
    assert plain == Principal(
        "a", "search", frozenset({"small", "large"}), frozenset({"openai"}), 5, bounds=plain.bounds
    )
    assert principal.may_use("small")
    assert not principal.may_use("mini")
    assert not principal.may_use("other")
    assert RING.identify(bearer(KEY)).principal.may_use("anything")


def test_a_dialect_that_is_not_allowed_is_forbidden() -> None:
    keyring = ring(a=entry(KEY, dialects=["openai"]), b=entry(OTHER, dialects=[]))
    error = refusal(keyring, bearer(KEY), "ollama")
    assert (error.kind, error.code) == (Kind.FORBIDDEN, "dialect_not_allowed")
    assert refusal(keyring, bearer(OTHER), "openai").kind is Kind.FORBIDDEN
    assert RING.identify(bearer(KEY), "anything").principal.key == "team_a"


def test_an_empty_list_of_models_is_none_of_them() -> None:
    assert not ring(a=entry(KEY, models=[])).identify(bearer(KEY)).principal.may_use("small")


def test_open_lets_everybody_in_with_any_header() -> None:
    keyring = Keyring(Config())
    for headers in ([], bearer("nonsense"), bearer(KEY) * 2):
        assert keyring.identify(headers, "openai").principal is ANONYMOUS
    assert ANONYMOUS.may_use("any")


# ---- what is refused


def test_expiry_is_asked_of_the_clock_at_every_request() -> None:
    moment = datetime(2027, 1, 31, tzinfo=UTC)
    now = moment.timestamp() - 1
    keyring = Keyring(Config(keys={"a": entry(KEY, expires=moment)}), lambda: now)
    assert keyring.identify(bearer(KEY)).principal.key == "a"
    now += 1
    assert "expired" in refusal(keyring, bearer(KEY)).message


def test_a_bare_date_lasts_through_its_day() -> None:
    key = entry(KEY, expires="2027-01-31")
    assert ring(datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC).timestamp(), a=key).identify(bearer(KEY)).principal
    assert refusal(ring(datetime(2027, 2, 1, tzinfo=UTC).timestamp(), a=key), bearer(KEY))


def test_disabled_is_said_only_to_who_has_the_key() -> None:
    keyring = ring(a=entry(KEY, disabled=True))
    assert "disabled" in refusal(keyring, bearer(KEY)).message
    forged, _ = new_key("x")
    assert (
        "disabled" not in refusal(keyring, bearer(f"dgm_{KEY.split('_')[1]}_{'_'.join(forged.split('_')[2:])}")).message
    )


def test_near_misses_are_refused_and_typing_errors_are_told_apart() -> None:
    for index in range(len(KEY)):
        changed = KEY[:index] + ("A" if KEY[index] != "A" else "B") + KEY[index + 1 :]
        error = refusal(RING, bearer(changed))
        assert error.kind is Kind.UNAUTHENTICATED
        if changed.startswith("dgm_"):
            assert "checksum" in error.message
    for changed in (
        KEY[:-1],
        KEY + "A",
        KEY[4:],
        KEY.lower(),
        KEY.upper(),
        KEY + "\x00",
        "dgm_",
        "dgm",
        "dgm__",
        "dgm____",
    ):
        assert refusal(RING, bearer(changed)).kind is Kind.UNAUTHENTICATED
    assert refusal(RING, bearer(OTHER)).message == "the API key is not valid"
    assert refusal(RING, bearer("k" * 100_000)).message == "the API key is not valid"


def test_unknown_ids_and_wrong_secrets_take_the_same_steps() -> None:
    """Counted, not timed (row S9 does that): no line is run for the one that is not run for the other."""
    stem = f"dgm_{KEY.split('_')[1]}_{OTHER.split('_')[2]}"
    forged = f"{stem}_{checksum(stem.encode()).decode()}"
    assert well_formed(forged.encode())
    assert steps(OTHER) == steps(forged)
    assert steps(OTHER) != steps(FOREIGN + "x")


def steps(key: str) -> list[tuple[str, int]]:
    """The lines of the keyring and of `well_formed` that refusing `key` runs."""
    ran: list[tuple[str, int]] = []

    def watch(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in (keyring.__file__, keys.__file__):
            return None
        if event == "line":
            ran.append((frame.f_code.co_name, frame.f_lineno))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        with pytest.raises(GatewayError):
            RING.identify(bearer(key))
    finally:
        sys.settrace(before)
    return ran


# ---- whose prompts share a cache


def salted(secret: str = "s" * 32, by: Literal["team", "key"] = "team") -> Keyring:
    config = Config(
        keys={"a": entry(KEY, team="one"), "b": entry(OTHER, team="one"), "c": entry(FOREIGN)},
        models=MODELS,
        cache_salt=CacheSalt(secret_env="X", by=by).holding({"secret": secret}),
    )
    return Keyring(config)


def salts(keyring: Keyring) -> list[str | None]:
    return [keyring.identify(bearer(key)).principal.salt for key in (KEY, OTHER, FOREIGN)]


def test_keys_of_a_team_share_a_salt_or_each_has_its_own() -> None:
    a, b, c = salts(salted())
    assert a == b != c
    assert len({*salts(salted(by="key"))}) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", salt or "") for salt in (a, c))
    assert salts(RING_OF_THREE) == [None] * 3


def test_a_salt_is_the_same_in_every_gateway_of_one_secret_and_in_no_other() -> None:
    assert salts(salted()) == salts(salted())
    assert not {*salts(salted())} & {*salts(salted("t" * 32))}


def test_a_team_and_a_key_of_one_name_are_two() -> None:
    config = Config(
        keys={"x": entry(KEY), "y": entry(OTHER, team="x")}, models=MODELS, cache_salt=CacheSalt(secret_env="X")
    )
    keyring = Keyring(config)
    assert keyring.identify(bearer(KEY)).principal.salt != keyring.identify(bearer(OTHER)).principal.salt


# ---- making keys


def test_new_keys_are_well_formed_and_all_different() -> None:
    keys = [new_key("a")[0] for _ in range(200)]
    assert len(set(keys)) == len({key.split("_")[1] for key in keys}) == 200
    for key in keys:
        assert re.fullmatch(r"dgm_[a-z][0-9a-z]{9}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", key)
        assert well_formed(key.encode())
        assert not well_formed(key.encode()[:-1] + (b"0" if key[-1] != "0" else b"1"))


def test_the_checksum_is_what_the_docstring_says() -> None:
    assert well_formed(b"dgm_a000000000_" + b"0" * 43 + b"_" + checksum(b"dgm_a000000000_" + b"0" * 43))
    assert keys.base62(61, 2) == "0z"
    assert keys.base62(62, 2) == "10"
    assert checksum(b"123456789") == keys.base62(0xCBF43926, 6).encode()  # the check value of CRC-32


@pytest.mark.parametrize(
    "name", ["team-a", "Team_9", "on", "null", "7", "1e5", "a.b/c:d", "ключ", "a\\b", "#x", "- x"[2:]]
)
def test_the_entry_can_be_pasted_into_the_file(tmp_path: Path, name: str) -> None:
    key, text = new_key(name, team=name)
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    models = "models:\n  small:\n    backend: openai\n    workers: [http://127.0.0.1:8081]\n"
    (tmp_path / "gateway.yaml").write_text(f"{models}keys:\n{indented}", encoding="utf-8")
    config = load(tmp_path / "gateway.yaml", None, {})
    who = Keyring(config).identify(bearer(key)).principal
    assert (who.key, who.team) == (name, name)
    (tmp_path / "keys.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "gateway.yaml").write_text(f"{models}keys_file: keys.yaml\n")
    assert load(tmp_path / "gateway.yaml", None, {}) != config  # the same keys, but another place
    assert Keyring(load(tmp_path / "gateway.yaml", None, {})).identify(bearer(key)).principal.key == name


@pytest.mark.parametrize("name", ["", "two words", 'a"b', "a\nb", "x" * 201])
def test_names_that_cannot_be_configured_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 200 characters"):
        new_key(name)
    with pytest.raises(ValueError, match="must be 1 to 200 characters"):
        new_key("a", team=name)


def test_no_secret_shows(caplog: pytest.LogCaptureFixture) -> None:
    secret = KEY.split("_")[2]
    made, entry_text = new_key("a")
    assert made.split("_")[2] not in entry_text
    with caplog.at_level(logging.DEBUG):
        RING.identify(bearer(KEY))
        errors = [refusal(RING, bearer(KEY[:-1])), refusal(RING, bearer(KEY) * 2), refusal(RING, bearer(OTHER))]
    shown = [
        repr(RING),
        repr(RING.identify(bearer(KEY)).principal),
        caplog.text,
        *map(repr, errors),
        *map(str, errors),
    ]
    assert all(secret not in text for text in shown)
    assert repr(RING) == "Keyring(open=False, keys=2)"


# -- what may be remembered -------------------------------------------------------------------------------------------


def test_who_calls_may_be_remembered_unless_a_clock_was_asked() -> None:
    lasting = ring(a=entry(KEY)).identify(bearer(KEY))
    expiring = ring(a=entry(KEY, expires=datetime(2030, 1, 1, tzinfo=UTC))).identify(bearer(KEY))
    assert (lasting.lasting, expiring.lasting) == (True, False)
    assert Keyring(Config(models=MODELS, auth="open")).identify([]).lasting


def test_a_caller_is_found_by_its_name_as_its_key_is_now() -> None:
    keyring = ring(a=entry(KEY, team="search"), b=entry(OTHER, disabled=True, dialects=["openai"]))
    a = keyring.identify(bearer(KEY)).principal
    assert keyring.absent(left_by("a", a.identity, a.tenant), "openai") == a
    for name, words in (("b", "disabled"), ("c", "not valid"), ("jwt:c", "not accepted")):
        with pytest.raises(GatewayError, match=words) as caught:
            keyring.absent(left_by(name), "openai")
        assert caught.value.kind is Kind.UNAUTHENTICATED
    assert Keyring(Config()).absent(left_by("a"), "openai") is ANONYMOUS
    with pytest.raises(GatewayError) as forbidden:
        ring(b=entry(OTHER, dialects=["openai"])).absent(left_by("b"), "ollama")
    assert forbidden.value.kind is Kind.FORBIDDEN


def left_by(name: str, identity: str | None = None, owner: str | None = None, since: float = 50.0) -> Absent:
    return Absent(name, None, None, identity, f"key {name}" if owner is None else owner, since)


@pytest.mark.parametrize("by", ["file", "store", "pair", "network", "token"])
def test_another_key_of_the_name_is_another_caller(by: str) -> None:
    """Whoever has the name now has nothing of the key, or of the provider, that had it."""
    rings = [named_alike(by, secret) for secret in (KEY, OTHER)]
    who, other = (one.absent(left_by(name_of(by), since=1e12), "openai") for one in rings)
    assert who.key == other.key
    assert who.tenant != other.tenant
    assert who.salt != other.salt
    seal, unseal = (sealed.Seal(one.sealing, b"use") for one in (who, other))
    assert unseal.open(seal.close("hm")) is None
    for one, mine, its in ((rings[0], who, other), (rings[1], other, who)):
        assert one.absent(left_by(mine.key, mine.identity, mine.tenant), "openai") == mine
        with pytest.raises(GatewayError, match="not valid any more"):
            one.absent(left_by(its.key, its.identity, its.tenant), "openai")
        if by != "token":  # its head has to be read again
            one.confirm(mine, [], "openai")
            with pytest.raises(GatewayError, match="not valid any more"):
                one.confirm(its, [], "openai")


def test_another_team_of_the_key_has_nothing_of_the_one_before() -> None:
    before = ring(a=entry(KEY, team="blue")).identify(bearer(KEY)).principal
    for team in ("red", None):
        now = ring(a=entry(KEY, team=team))
        with pytest.raises(GatewayError, match="not valid any more"):
            now.absent(left_by("a", before.identity, before.tenant), "openai")
        now.confirm(before, [], "openai")  # a request that waits ends on the bill on which it began


def test_what_an_earlier_version_noted_is_the_keys_that_had_the_name_then() -> None:
    config = Config(keys_store="redis")
    table = KeyTable(config, [stored("s", created=100.0)])
    keyring = Keyring(config, table=table)
    with pytest.raises(GatewayError, match="not valid any more"):
        keyring.absent(left_by("s", since=99.0), "openai")
    found = keyring.absent(left_by("s", since=101.0), "openai")
    assert (found.owns("key s", 101.0), found.owns("key s", 99.0), found.owns("key t", 101.0)) == (True, False, False)
    assert ring(a=entry(KEY)).absent(left_by("a"), "openai").owns("key a", 0.0)
    assert not ring(anonymous=entry(KEY)).identify(bearer(KEY)).principal.owns("key anonymous", 1e12)


def named_alike(by: str, secret: str) -> Keyring:
    """A keyring with one caller whose name is the same for each `secret`."""
    seal, salt = Seal(secret_env="X"), CacheSalt(secret_env="X")
    seal, salt = seal.holding({"secret": "s" * 32}), salt.holding({"secret": "c" * 32})
    shared: dict[str, Any] = {"models": MODELS, "seal": seal, "cache_salt": salt}
    if by == "store":
        config = Config(keys_store="redis", **shared)
        return Keyring(config, table=KeyTable(config, [stored("a", secret)]))
    if by == "token":
        jwt = Jwt(issuer=f"https://{secret[4:14]}.example", audience="x", jwks_url="https://x/keys")
        return Keyring(Config(jwt=jwt, **shared), verifier=JwtVerifier(jwt, lambda: 0.0))
    pair = Key(aws_access_key_id=secret[4:14].upper(), aws_secret_env="S").holding({"aws_secret": "p" * 40})
    near = Key(match=KeyMatch(address=(f"10.{secret.encode()[12]}.0.0/16", "::1")))
    key = {"pair": pair, "network": near}.get(by) or entry(secret)
    return Keyring(Config(keys={"a": key}, **shared))


def name_of(by: str) -> str:
    return "jwt:a" if by == "token" else "a"


def test_a_key_of_the_store_is_found_by_its_name_until_it_is_revoked() -> None:
    config = Config(keys_store="redis")
    table = KeyTable(config)
    keyring = Keyring(config, table=table)
    with pytest.raises(GatewayError) as away:
        keyring.absent(left_by("s", since=1e12), "openai")
    assert (away.value.kind, away.value.code) == (Kind.OVERLOADED, "keys_unavailable")
    table.away = False
    key = stored("s", team="blue")
    table.put(key)
    assert keyring.absent(left_by("s", owner="team blue", since=1e12), "openai").team == "blue"
    table.put(replace(key, revoked=1.0))
    with pytest.raises(GatewayError, match="not valid any more"):
        keyring.absent(left_by("s", since=1e12), "openai")
