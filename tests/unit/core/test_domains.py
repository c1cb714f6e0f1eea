"""A client's domains hold for a page however its address is spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.domains import host_of, is_within
from gateway.core.messages import ServerTool

SPELLED = {
    "192.168.0.1": (
        "3232235521",
        "0xc0a80001",
        "0xC0.0xa8.0x0.0x1",
        "0300.0250.0.01",
        "192.168.1",
        "192.11010049",
        "[::ffff:192.168.0.1]",
        "[0:0:0:0:0:ffff:c0a8:1]",
        "192.168.0.%31",
        "192.168.0.1.",
    ),
    "example.com": ("EXAMPLE.com", "e%78ample.com", "example.com.", "www.example.com", "example%2ecom"),
    "xn--r8jz45g.jp": ("例え.jp", "xn--R8JZ45G.jp"),
    "例え.jp": ("xn--r8jz45g.jp",),
    "2001:db8::1": ("[2001:db8:0::1]", "[2001:0DB8::0001]", "[2001:db8::0.0.0.1]"),
    "example.com/dir": (
        "example.com/%64ir/a",
        "example.com//dir/a",
        "example.com/./dir",
        "example.com/a/../dir",
        "example.com/a/%2e%2e/dir",
        "example.com/%2Fdir",
    ),
}


@pytest.mark.parametrize(("domain", "spelled"), [(one, other) for one, spelled in SPELLED.items() for other in spelled])
def test_every_spelling_of_a_host_is_that_host(domain: str, spelled: str) -> None:
    page = spelled if "/" in spelled else f"{spelled}/page"
    tool = ServerTool("fetch", "f", blocked=(domain,))
    assert not tool.permits(f"http://{page}")
    assert ServerTool("fetch", "f", allowed=(domain,)).permits(f"http://{page}")


@pytest.mark.parametrize(
    ("domain", "page"),
    [
        ("example.com", "http://notexample.com/"),
        ("example.com", "http://example.com.evil.example/"),
        ("example.com/dir", "http://example.com/other/dir"),
        ("example.com/dir/", "http://example.com/directory"),
        ("example.com/dir", "http://example.com/dir/%2e%2e/other"),
        ("192.168.0.1", "http://192.168.0.10/"),
        ("1.example", "http://0x1.0x1.example/"),
    ],
)
def test_another_host_or_path_is_another_one(domain: str, page: str) -> None:
    assert not is_within(page, (domain,))


@given(st.integers(0, (1 << 32) - 1))
def test_any_number_is_its_address(number: int) -> None:
    plain = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
    assert {host_of(plain), host_of(str(number)), host_of(hex(number)), host_of(f"0{number:o}")} == {plain}


@given(st.text(max_size=60), st.text(max_size=40))
def test_whatever_a_client_writes_is_a_domain(host: str, domain: str) -> None:
    host_of(host)
    assert isinstance(is_within("http://a.example/b", (domain,)), bool)
