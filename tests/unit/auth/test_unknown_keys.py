"""Keys that nothing here knows, in ids and in names of models: both stand in logs."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

import httpx
import pytest

from gateway.auth import KnownKeys
from tests.support.harness import Stack
from tests.unit.app.asking import CHAT, key

_draw = random.Random(39)
_ANY = string.ascii_letters + string.digits


def drawn(alphabet: str, length: int) -> str:
    """Text in which every kind of character stands."""
    return "aZ7" + "".join(_draw.choices(alphabet, k=length - 3))


KEYS = {
    "ours": "dgm_aaaa1111_" + drawn(_ANY + "-_", 43),
    "ours in capitals": "DGM_AAAA1111_" + drawn(_ANY, 43),
    "OpenAI": "sk-proj-" + drawn(_ANY + "-_", 60),
    "32 bytes in base64url": drawn(_ANY + "-_", 43),
    "AWS": drawn(_ANY, 40),
    "Azure": drawn(_ANY, 84),
    "Google": "AIza" + drawn(_ANY, 35),
    "a token": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0." + drawn(_ANY + "-_", 40),
}
AMONG_NAMES = {
    **KEYS,
    "128 bits in hex": f"{_draw.getrandbits(128):032x}",
    "256 bits in hex": f"{_draw.getrandbits(256):064x}",
}
MODELS = (
    "gpt-4o-mini",
    "claude-sonnet-4-5-20250929",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    "llama3.3:70b-instruct-q4_K_M",
)


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[Stack, str]]:
    secret, keys = key("me")
    with Stack(({},), {"keys": keys}) as stack:
        yield stack, secret


@pytest.mark.parametrize("shown", [False, True], ids=["stranger", "client"])
@pytest.mark.parametrize("form", AMONG_NAMES)
def test_a_key_that_nothing_knows_is_in_no_record(stack: tuple[Stack, str], form: str, shown: bool) -> None:
    gateway, secret = stack
    text = AMONG_NAMES[form]
    headers = {"authorization": f"Bearer {secret}"} if shown else {}
    if form in KEYS:  # an id may be 128 bits in hex
        headers["x-request-id"] = text
    before = len(gateway.records())
    answer = httpx.post(gateway.url + "/v1/chat/completions", json={**CHAT, "model": text}, headers=headers)
    assert answer.status_code == (404 if shown else 401)
    gateway.gateway.log.flush()
    assert len(gateway.records()) == before + 1
    assert text not in gateway.output.getvalue().decode()
    if shown:
        assert gateway.record()["asked"] == "***"


@pytest.mark.parametrize("name", MODELS)
def test_the_name_of_a_model_stays(name: str) -> None:
    assert KnownKeys().masked_name(name, []) == name
