"""One policy for clients' JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers, Request
from gateway.wire.json import check_depth, encode, members, present, require_json, settle_unknown, typed
from tests.support.raised import raised
from tests.support.steps import steps


def request(body: bytes, *headers: tuple[bytes, bytes]) -> Request:
    return Request("POST", "/", list(headers), body)


def refusal(body: bytes, *headers: tuple[bytes, bytes]) -> GatewayError:
    error = raised(members, request(body, *headers))
    assert error.blame is Blame.CLIENT
    return error


def test_members_are_kept_as_they_were_written() -> None:
    found = members(request(b'{"a": 1.50, "b":{"x" :[ 1]},"c":"\\u00e9", "d":12345678901234567890123}'))
    assert {name: bytes(raw) for name, raw in found.items()} == {
        "a": b"1.50",
        "b": b'{"x" :[ 1]}',
        "c": b'"\\u00e9"',
        "d": b"12345678901234567890123",
    }


def test_null_is_absent() -> None:
    assert members(request(b'{"a":null,"b": null ,"c":[null]}')) == {"c": Raw(b"[null]")}
    assert present(Raw(b"null")) is None
    assert present(Raw(b"0")) == Raw(b"0")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":\x00}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        (b'{"\xff":1}', "not UTF-8"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"7", "must be a JSON object"),
    ],
)
def test_what_is_no_object_is_refused(body: bytes, words: str) -> None:
    error = refusal(body)
    assert error.kind is Kind.BAD_REQUEST
    assert error.code == "invalid_json"
    assert words in error.message


@pytest.mark.parametrize("name", ["prompt_logprobs", "truncate_prompt_tokens", "x"])
@pytest.mark.parametrize("value", [b"1e999", b"[-1e400]", b"[" * 100_000 + b"1.5" + b"]" * 100_000])
def test_numbers_beyond_all_bounds_are_refused_wherever_they_are_read(name: str, value: bytes) -> None:
    """Those of some names are read as integers before anything else."""
    body = b'{"%b":%b}' % (name.encode(), value)
    error = raised(lambda: settle_unknown(members(request(body)), frozenset(), "pass"))
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "invalid_json")


def test_nesting_without_end_is_refused() -> None:
    """At the top by the decoder, in a member that only passes through by `check_depth`."""
    deep = b"[" * 100_000 + b"]" * 100_000
    assert refusal(b'{"a":' + deep + b"}").kind is Kind.BAD_REQUEST
    error = raised(check_depth, {"fine": Raw(b"[1]"), "deep": Raw(deep)})
    assert (error.param, error.code) == ("deep", "invalid_json")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","x":1,"model":"a"}', "model"),
        (b'{"model":"a","\\u006dod\\u0065l":"b"}', "model"),
        (b'{"m\\u006F\\u0064e\\u006C":"a","\\u006Do\\u0064e\\u006c":"b"}', "model"),
        (b'{"Model":"a"}', "Model"),
        (b'{"model":"a"," MODEL ":"b"}', " MODEL "),
    ],
)
def test_a_model_said_in_two_ways_is_refused(body: bytes, param: str) -> None:
    error = refusal(body)
    assert (error.code, error.param) == ("ambiguous_model", param)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","tools":[{"model":"x"},{"model":"y"}]}',
        b'{"model":"a","text":"\\"model\\""}',
        b'{"x":{"model":"inner"}}',
        b'{"model":"model"}',
        b'{"model":"\\u006dodel"}',
        b'{"model":"a","text":"\\\\u006dodel","x":{"\\u006dodel":1}}',
    ],
)
def test_a_model_within_a_value_is_not_ours(body: bytes) -> None:
    assert set(members(request(body))) == set(json.loads(body))


@pytest.mark.parametrize(
    "declared",
    [None, b"application/json", b"Application/JSON; charset=utf-8", b"application/vnd.api+json", b"", b"; charset=x"],
)
def test_json_by_any_of_its_names(declared: bytes | None) -> None:
    headers: Headers = [] if declared is None else [(b"content-type", declared)]
    require_json(request(b"{}", *headers))


@pytest.mark.parametrize("declared", [b"text/plain", b"multipart/form-data; boundary=x", b"application/x-json"])
def test_what_is_declared_otherwise_is_refused(declared: bytes) -> None:
    assert raised(require_json, request(b"{}", (b"content-type", declared))).kind is Kind.MEDIA_TYPE


class Inner(msgspec.Struct):
    size: int


class Outer(msgspec.Struct):
    name: str
    inner: list[Inner] = []
    table: dict[str, int] = {}


_outer = msgspec.json.Decoder(Outer)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"name":1}', "name", "invalid_value"),
        (b"{}", "name", "missing_parameter"),
        (b'{"name":"a","inner":[{"size":1},{"size":"x"}]}', "inner.1.size", "invalid_value"),
        (b'{"name":"a","inner":[{}]}', "inner.0.size", "missing_parameter"),
        (b'{"name":"a","inner":7}', "inner", "invalid_value"),
        (b'{"name":"a","table":{"k":"v"}}', "table.?", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named_as_the_client_wrote_it(body: bytes, param: str, code: str) -> None:
    error = raised(typed, body, _outer)
    assert (error.kind, error.param, error.code) == (Kind.BAD_REQUEST, param, code)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("body", [b"{", b'{"name":"\xff"}', b'{"name":"a","x":' + b"[" * 100_000])
def test_what_is_malformed_below_the_top_is_refused(body: bytes) -> None:
    assert raised(typed, body, _outer).code == "invalid_json"


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda name: name.strip().lower() != "model"), _VALUES, max_size=4))
def test_any_object_passes_unchanged(body: dict[str, Any]) -> None:
    found = members(request(json.dumps(body).encode()))
    check_depth(found)
    assert json.loads(encode(found)) == {name: value for name, value in body.items() if value is not None}


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_the_clients_fault(body: bytes) -> None:
    blame, found = None, set[str]()
    try:
        found = set(members(request(body)))
    except GatewayError as error:
        blame = error.blame
    assert blame is Blame.CLIENT or found <= set(json.loads(body))


def test_unknown_members_are_kept_dropped_or_refused() -> None:
    given = {"known": Raw(b"1"), "x": Raw(b"2"), "y": Raw(b"3")}
    known = frozenset({"known", "absent"})
    raw = dict(given)
    assert settle_unknown(raw, known, "pass") == ({"x": Raw(b"2"), "y": Raw(b"3")}, ())
    assert raw == given
    assert settle_unknown(raw, known, "drop") == ({}, ("x", "y"))
    assert raw == {"known": Raw(b"1")}
    assert settle_unknown(raw, known, "error") == ({}, ())
    with pytest.raises(GatewayError, match="unknown parameter 'x', 'y'") as caught:
        settle_unknown(dict(given), known, "error", kind=Kind.UNSUPPORTED)
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED, "x")
    with pytest.raises(GatewayError, match="'x' is not valid JSON"):
        settle_unknown({"x": Raw(b"[1,]")}, known, "pass")


TWICE = [
    b'{"messages":[{"role":"user","content":"shown","content":"hidden"}]}',
    b' \n{"a":{"b":[1,{"c":1,"d":{"e":1,"e":1}}]}}',
    b'{"top":1,"top":1}',
    rb'{"a":{"x":"\u0022\u0022","y":1,"y":1}}',  # as many quotes, escaped, as the dropped name takes along
    rb'{"a":{"na\u006de":1,"name":2}}',
    rb'{"a":{"name":1e999,"name":2}}',
    b'{"a":{"":1,"":2}}',
]


@pytest.mark.parametrize("body", TWICE)
def test_no_object_has_two_members_of_one_name(body: bytes) -> None:
    """Decoders keep the last, some workers the first, and a schema that is passed on as it is has both."""
    error = refusal(body)
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "duplicate_member")
    assert "is given twice" in error.message


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_distinct_members_are_accepted(value: object) -> None:
    for ascii_only in (True, False):
        try:
            body = json.dumps({"a": value}, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        members(request(body))


def test_an_ordinary_body_is_searched_for_them_by_no_step_of_its_own() -> None:
    """What is written again with as many quotes is not read object by object, however long."""

    def read(turns: int) -> int:
        said = [{"role": "user", "content": 'She said "né" \\ \n'}] * turns
        body = json.dumps({"model": "m", "messages": said, "tools": [{"x": {"y": [1, 2.50]}}] * turns}).encode()
        assert len(body) < 1 << 15
        return steps(lambda: members(request(body)), within="/gateway/")

    read(1)
    assert read(2) == read(100)
    # At worst some steps for each object.
    doubtful = [rb'{"a":[' + b",".join([rb'{"b":"\u0022"}'] * count) + b"]}" for count in (100, 200)]
    few, many = (steps(lambda body=body: members(request(body)), within="/gateway/") for body in doubtful)  # type: ignore[misc]
    assert many < 2 * few
