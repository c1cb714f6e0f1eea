"""Ids of requests: a client's own is kept where it is harmless, and a key in its place never is."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import KnownKeys
from gateway.core.http import Headers
from gateway.kernel.request_ids import given_context, request_id, worker_request_id

MIXED = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01"  # the form of AWS's documented example, without its slashes
KEYS = {
    "ours": "dgm_4f9a0b1c2d3e4f5a6b7c8d9e0f1a2b3c",
    "OpenAI": "sk-abcdefghijklmnopqrstT3BlbkFJabcdefghijklmnopqrst",
    "OpenAI project": "sk-proj-abc_DEF-0123456789",
    "Anthropic": "sk-ant-api03-abcdefghijklmnop",
    "OpenRouter": "sk-or-v1-0123456789abcdef0123456789abcdef",
    "LiteLLM": "sk-1234",
    "Hugging Face": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "Friendli": "flp_abcdefghijklmnopqrstuvwxyz",
    "Groq": "gsk_abcdefghijklmnopqrstuvwxyz",
    "Fireworks": "fw_3ZabcdefghijklmnopQRST",
    "Replicate": "r8_abcdefghijklmnopqrstuvwxyz",
    "NVIDIA": "nvapi-abcdefghijklmnopqrstuvwxyz",
    "xAI": "xai-abcdefghijklmnopqrstuvwxyz",
    "Perplexity": "pplx-abcdefghijklmnopqrstuvwxyz",
    "Together": "tgp_v1_abcdefghijklmnopqrstuvwxyz",
    "GitHub": "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "GitHub, fine-grained": "github_pat_11ABCDEFG0abcdefghijkl",
    "GitLab": "glpat-abcdefghijklmnopqrst",
    "Slack": "xoxb-123456789012-abcdefghijkl",
    "Stripe": "rk_live_abcdefghijklmnopqrstuvwx",
    "AWS access key id": "AKIAIOSFODNN7EXAMPLE",
    "AWS temporary access key id": "ASIAIOSFODNN7EXAMPLE",
    "AWS secret": MIXED,
    "Azure OpenAI": MIXED * 2 + "ACOG",
    "Google": "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
    "Google OAuth": "ya29.a0AfH6SMBabcdefghijklmnop",
    "JWT": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln",
    "a bearer token": "Bearer-abcdef0123456789",
}
IDS = [
    "0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e",  # 32 hexadecimal digits: also the form of Azure's older keys, but far more ids
    "0B1C2D3E4F5A6B7C8D9E0F1A2B3C4D5E",
    "3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "3FA85F64-5717-4562-B3FC-2C963F66AFA6",
    "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",  # a trace
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",  # SHA-1
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",  # ULID
    "0ujtsYcgvSTl8PAuAdqWYSMnLOv",  # KSUID
    "V1StGXR8_Z5jdHi6B-myT",  # nanoid
    "req_011CQwabcdefGHIJ0123",
    "chatcmpl-9UMxV0aBcDeFgHiJkLmNoPqRsTuVw",
    "batch:42.task-7",
    "asia-east1-b-12345",
    "desk-7",
    "1",
]


def told_by(headers: Headers) -> str:
    return request_id(headers, KnownKeys())


def told(given: str) -> str:
    return told_by([(b"host", b"x"), (b"x-request-id", given.encode())])


@pytest.mark.parametrize("given", IDS)
def test_a_clients_own_id_is_kept(given: str) -> None:
    assert told(given) == given


@pytest.mark.parametrize("around", ["{}", "key:{}", "id-{}", "Bearer.{}"])
@pytest.mark.parametrize("vendor", KEYS)
def test_a_key_becomes_no_id(vendor: str, around: str) -> None:
    given = around.format(KEYS[vendor])
    made = told(given)
    assert KEYS[vendor] not in made
    assert len(made) == 32


@pytest.mark.parametrize("around", ["{}", "key:{}", "{}-7"])
@pytest.mark.parametrize("header", ["authorization: Bearer {}", "authorization: {}", "api-key: {}", "x-api-key:  {} "])
def test_a_key_of_any_form_becomes_no_id_of_its_request(header: str, around: str) -> None:
    key = "a-key-of-no-vendor-0123456789abcdef"
    name, _, value = header.format(key).partition(":")
    asked = (b"x-request-id", around.format(key).encode())
    assert len(told_by([asked, (name.encode(), value.encode())])) == 32
    assert told_by([asked, (name.encode(), b"Bearer another-key-0123456789")]) == asked[1].decode()


@pytest.mark.parametrize("key", ["none", "", "a", "Bearer", "Bearer none"])
def test_what_stands_for_no_key_replaces_no_id(key: str) -> None:
    assert told_by([(b"authorization", key.encode()), (b"x-request-id", b"none-a-7")]) == "none-a-7"


@given(st.text(alphabet="0123456789abcdef-", min_size=1, max_size=128))
def test_hexadecimal_ids_are_kept(given: str) -> None:
    assert told(given) == given


@given(st.text(max_size=200))
def test_what_is_told_is_harmless(given: str) -> None:
    made = told_by([(b"x-request-id", given.encode("utf-8", "surrogatepass"))])
    assert 1 <= len(made) <= 128
    assert set(made) <= set(string.ascii_letters + string.digits + "._:-")


def test_a_request_without_an_id_gets_a_new_one() -> None:
    assert told_by([]) != told_by([])
    assert len(told_by([])) == 32


def test_no_worker_sees_an_id_twice() -> None:
    ids = [worker_request_id("same") for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(id.startswith(b"same-") for id in ids)


def test_a_trace_that_holds_a_key_is_not_passed_on() -> None:
    key, parent = b"0123456789abcdef0123456789abcdef", b"00-%b-00f067aa0ba902b7-01"
    shown = (b"api-key", key)
    clean = (b"traceparent", parent % b"4bf92f3577b34da6a3ce929d0e0e4736")
    state = (b"tracestate", b"a=" + key)
    assert given_context([shown, clean, state], KnownKeys()) == [clean]
    assert given_context([shown, (b"traceparent", parent % key), state], KnownKeys()) == []
    assert given_context([clean, state], KnownKeys()) == [clean, state]
    known = KnownKeys()
    known.add(key)
    assert given_context([clean, state], known) == [clean]
