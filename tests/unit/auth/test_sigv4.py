"""Signed requests: AWS's published example, botocore as oracle, and every way in which a signature is none."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import Keyring, PendingAuth, sigv4
from gateway.config import Config, Key
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from tests.support.harness import load_text

ACCESS_KEY = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
# The example of AWS's "Create a signed AWS API request".
EXAMPLE: Headers = [
    (b"host", b"iam.amazonaws.com"),
    (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8"),
    (b"x-amz-date", b"20150830T123600Z"),
    (
        b"authorization",
        b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request,"
        b" SignedHeaders=content-type;host;x-amz-date,"
        b" Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
    ),
]
EXAMPLE_TIME = 1440938160


def the_example() -> sigv4.Signature:
    found = sigv4.read(EXAMPLE)
    assert found is not None
    return found


def test_the_published_example() -> None:
    signature = the_example()
    assert (signature.access_key, signature.time) == (ACCESS_KEY, EXAMPLE_TIME)
    query = b"Action=ListUsers&Version=2010-05-08"
    assert sigv4.matches(signature, SECRET, "GET", b"/", query, EXAMPLE, b"")
    assert sigv4.matches(signature, SECRET, "GET", b"/", b"Version=2010-05-08&Action=ListUsers", EXAMPLE, b"")
    canonical = sigv4.canonical_request("GET", b"/", query, EXAMPLE, signature.signed, sha256(b"").hexdigest().encode())
    assert sha256(canonical).hexdigest() == "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"


def signed(
    url: str = "http://gw:8080/sagemaker/endpoints/a%2Fb/invocations",
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> Headers:
    """The headers that botocore sends, signed now."""
    request = AWSRequest(method=method, url=url, data=body, headers=headers or {})
    SigV4Auth(Credentials(ACCESS_KEY, SECRET), "sagemaker", "eu-west-1").add_auth(request)
    host = re.sub(r"^https?://([^/]*).*", r"\1", url)
    return [(b"host", host.encode())] + [
        (name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.items()
    ]


def verify(headers: Headers, path: bytes, query: bytes = b"", body: bytes = b"{}", secret: str = SECRET) -> bool:
    signature = sigv4.read(headers)
    assert signature is not None
    return sigv4.matches(signature, secret, "POST", path, query, headers, body)


segment = st.text("abcXYZ019-_.~%25+ @:é", min_size=1, max_size=12)
plain = st.text("abc XYZ019-_=;/,", max_size=20)


@given(
    name=segment,
    body=st.binary(max_size=100),
    headers=st.dictionaries(st.text("abcxyz-", min_size=1, max_size=8).map(lambda name: "x-a" + name), plain),
    query=st.lists(st.tuples(st.text("abz", min_size=1, max_size=3), st.text("abz019", max_size=3)), max_size=3),
)
def test_whatever_botocore_signs_is_believed(
    name: str, body: bytes, headers: dict[str, str], query: list[tuple[str, str]]
) -> None:
    from urllib.parse import quote

    path = f"/sagemaker/endpoints/{quote('n' + name, safe='')}/invocations"
    text = "&".join(f"{key}={value}" for key, value in query)
    sent = signed(f"http://gw{path}" + (f"?{text}" if text else ""), body, headers)
    assert verify(sent, path.encode(), text.encode(), body)


PATH = b"/sagemaker/endpoints/a%2Fb/invocations"


def test_anything_that_is_changed_is_noticed() -> None:
    sent = signed(headers={"Content-Type": "application/json", "X-Amzn-SageMaker-Target-Model": "m"})
    assert verify(sent, PATH)
    assert verify([*sent, (b"user-agent", b"x"), (b"x-forwarded-for", b"y")], PATH)
    assert not verify(sent, PATH, secret=SECRET + "x")
    assert not verify(sent, PATH, body=b"{} ")
    assert not verify(sent, PATH, query=b"a=b")
    assert not verify(sent, b"/sagemaker/endpoints/a/b/invocations")
    assert not verify(sent, b"/sagemaker/endpoints/x/../a%2Fb/invocations")
    for position, (name, value) in enumerate(sent):
        if name != b"authorization" and name != b"x-amz-date":
            assert not verify([*sent[:position], (name, value + b"x"), *sent[position + 1 :]], PATH)
            assert not verify([*sent, (name, b"x")], PATH)
            assert not verify(sent[:position] + sent[position + 1 :], PATH)
    signature = sigv4.read(sent)
    assert signature is not None
    assert not sigv4.matches(signature, SECRET, "PUT", PATH, b"", sent, b"{}")


def test_what_says_which_model_is_meant_must_be_signed() -> None:
    with pytest.raises(GatewayError, match="must name x-amzn-sagemaker-target-model") as caught:
        sigv4.read([*signed(), (b"x-amzn-sagemaker-target-model", b"m")])
    assert caught.value.code == "incomplete_signature"


def test_a_said_hash_must_be_signed_and_right() -> None:
    right, wrong = sha256(b"{}").hexdigest(), sha256(b"[]").hexdigest()
    name = "X-Amz-Content-SHA256"
    assert verify(signed(headers={name: right}), PATH)
    assert not verify(signed(headers={name: wrong}), PATH)
    assert not verify(signed(headers={name: "UNSIGNED-PAYLOAD"}), PATH)
    assert not verify([*signed(), (b"x-amz-content-sha256", right.encode())], PATH)


def change(old: bytes, new: bytes) -> Callable[[Headers], Headers]:
    return lambda headers: [(name, re.sub(old, new, value)) for name, value in headers]


@pytest.mark.parametrize(
    "broken",
    [
        change(rb"Credential=[^,]*", b"Credential=AKID"),
        change(rb"Credential=[^,]*,", b""),
        change(rb"aws4_request", b"aws5_request"),
        change(rb"AKIDEXAMPLE", b"A/KID"),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders="),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders=host"),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders=x-amz-date"),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders=x-amz-date;host"),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders=host;host;x-amz-date"),
        change(rb"SignedHeaders=[^,]*", b"SignedHeaders=Accept;host;x-amz-date"),
        change(rb"Signature=.*", b"Signature=abc"),
        change(rb", Signature=.*", b""),
        change(rb"^(\d{8})T(\d{6})Z$", rb"\1T\2"),
        change(rb"^\d{8}(T\d{6}Z)$", rb"20150831\1"),
        change(rb"20150830", b"20159930"),
        change(rb"20150830", b"00000830"),
        change(rb"T123600Z", b"T993600Z"),
        lambda headers: [pair for pair in headers if pair[0] != b"x-amz-date"],
        lambda headers: [*headers, (b"x-amz-date", b"20150830T123600Z")],
        lambda headers: [*headers, (b"authorization", b"Bearer x")],
        lambda headers: [*headers, headers[-1]],
    ],
)
def test_what_is_not_a_whole_signature(broken: Callable[[Headers], Headers]) -> None:
    with pytest.raises(GatewayError) as caught:
        sigv4.read(broken(EXAMPLE))
    assert (caught.value.kind, caught.value.code) == (Kind.UNAUTHENTICATED, "incomplete_signature")


pieces = st.sampled_from(
    [b"Credential=", b"SignedHeaders=", b"Signature=", b"AKID/20150830/r/s/aws4_request", b"host;x-amz-date", b"0" * 64]
)
words = st.lists(st.one_of(pieces, st.sampled_from([b",", b", ", b"=", b"/", b";", b" "]), st.binary(max_size=6)))


@given(words, st.one_of(st.sampled_from([b"20150830T123600Z", b"20150830T999999Z"]), st.binary(max_size=16)))
def test_no_header_ever_leads_to_anything_but_a_refusal(parts: list[bytes], date: bytes) -> None:
    headers = [(b"host", b"h"), (b"x-amz-date", date), (b"authorization", b"AWS4-HMAC-SHA256 " + b"".join(parts))]
    with contextlib.suppress(GatewayError):
        signature = sigv4.read(headers)
        assert signature is not None
        assert not sigv4.matches(signature, SECRET, "POST", b"/%ff\xff", b"a&&=b", headers, b"")


def test_other_schemes_are_not_ours() -> None:
    assert sigv4.read([]) is None
    assert sigv4.read([(b"authorization", b"Bearer AWS4-HMAC-SHA256")]) is None


@pytest.mark.parametrize(("off", "word"), [(-301, "not yet current"), (301, "expired"), (-300, ""), (300, ""), (0, "")])
def test_five_minutes_of_skew(off: int, word: str) -> None:
    if not word:
        sigv4.check_time(the_example(), EXAMPLE_TIME + off)
        return
    with pytest.raises(GatewayError) as caught:
        sigv4.check_time(the_example(), EXAMPLE_TIME + off)
    assert caught.value.code == "signature_expired"
    assert word in caught.value.message


# ---- whose key it is


def keyring(**options: Any) -> Keyring:
    """One AWS pair, for the moment of the published example."""
    lines = "\n".join(f"    {name}: {value}" for name, value in options.items())
    config = load_with(f"keys:\n  team-a:\n    aws_access_key_id: {ACCESS_KEY}\n    aws_secret_env: S\n{lines}\n")
    return Keyring(config, lambda: EXAMPLE_TIME)


def load_with(text: str, **environ: str) -> Config:
    models = "models:\n  m:\n    backend: openai\n    workers: ['http://127.0.0.1:1']\n"
    return load_text(models + text, {"S": SECRET, **environ})


def prove(pending: PendingAuth, query: bytes = b"Action=ListUsers&Version=2010-05-08") -> None:
    assert pending.prove is not None
    pending.prove("GET", b"/", query, b"")


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(GatewayError) as caught:
        action()
    assert caught.value.kind in (Kind.UNAUTHENTICATED, Kind.FORBIDDEN)
    return caught.value.code or caught.value.message


def test_a_claim_is_proven_by_the_whole_request() -> None:
    pending = keyring(team="x", priority=3).identify(EXAMPLE, "any")
    assert (pending.principal.key, pending.principal.team, pending.principal.priority) == ("team-a", "x", 3)
    prove(pending)
    assert code_of(lambda: prove(pending, b"Action=DeleteUsers")) == "signature_mismatch"


def test_what_the_head_alone_shows_is_refused_before_the_body() -> None:
    ring = keyring()
    other = change(rb"AKIDEXAMPLE", b"AKIDOTHER")(EXAMPLE)
    assert code_of(lambda: ring.identify(other)) == "unknown_access_key"
    late = Keyring(load_with(f"keys:\n  a:\n    aws_access_key_id: {ACCESS_KEY}\n    aws_secret_env: S\n"))
    assert code_of(lambda: late.identify(EXAMPLE)) == "signature_expired"
    assert "different API keys" in code_of(lambda: ring.identify([*EXAMPLE, (b"x-api-key", b"k")]))
    ring.identify([*EXAMPLE, (b"x-api-key", b" ")])


@pytest.mark.parametrize(
    ("options", "said"),
    [({"disabled": "true"}, "disabled"), ({"expires": "2015-01-01"}, "expired"), ({"dialects": "[openai]"}, "dialect")],
)
def test_what_became_of_a_pair_is_told_only_to_its_owner(options: dict[str, str], said: str) -> None:
    pending = keyring(**options).identify(EXAMPLE, "azure")
    assert code_of(lambda: prove(pending, b"wrong")) == "signature_mismatch"
    assert said in code_of(lambda: prove(pending))


def test_a_pair_and_a_key_may_be_one_entry() -> None:
    digest = "sha256:" + sha256(b"sk-plain").hexdigest()
    ring = keyring(hash=digest)
    pending = ring.identify([(b"authorization", b"Bearer sk-plain")])
    assert (pending.principal.key, pending.prove) == ("team-a", None)
    prove(ring.identify(EXAMPLE))
    assert repr(ring) == "Keyring(open=False, keys=1)"


def test_an_open_gateway_looks_at_no_signature() -> None:
    assert Keyring(load_with("auth: open\n")).identify([(b"authorization", b"AWS4-HMAC-SHA256 nonsense")]).prove is None


def test_the_secret_comes_from_a_file_or_the_environment_and_is_never_shown() -> None:
    config = load_with(f"keys:\n  a:\n    aws_access_key_id: {ACCESS_KEY}\n    aws_secret_env: S\n")
    assert config.keys["a"].aws_secret == SECRET
    assert SECRET not in repr(config) + config.model_dump_json()
    assert Key(aws_access_key_id=ACCESS_KEY).aws_secret is None
    other = load_with(f"keys:\n  a:\n    aws_access_key_id: {ACCESS_KEY}\n    aws_secret_env: T\n", T="other")
    assert other.keys["a"] != config.keys["a"]
