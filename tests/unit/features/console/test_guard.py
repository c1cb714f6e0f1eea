"""Who may see the console: which Host headers mean this machine, whatever is forged around its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.console.guard import Denied, Guard

TRUE = ["localhost", "127.0.0.1", "[::1]", "127.8.9.1", "LOCALHOST", "[0:0:0:0:0:0:0:1]"]
PORTS = ["", ":1", ":9090", ":65535"]
_FORGED = """{}.evil.com {}evil.com {}.evil.com:9090 {}:9090.evil.com {}:9090:evil.com {}: {}:+1 {}:\uff19 {}. {}.. .{}
    evil.com.{} {}@evil.com evil.com@{} user:word@{} {}/evil.com {}?evil.com {}#evil.com {},evil.com {}%evil.com {}%25lo
    http://{} [{}] [{} {}] [{}].evil.com [[{}]] xn--{}"""
FORGED = [*_FORGED.split(), "{} evil.com", " {}", "{}\n", "{}\x00"]
_STRANGE = """evil.com 10.1.2.3 0.0.0.0 [::] [::1%lo] [::1%25lo] [fe80::1%lo] [::1].evil.com [::1]evil.com:80
    [127.0.0.1]x 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 127.1 127.0.0.01 127.0.0.1.0 127.0.0.256 128.0.0.1
    localhost.localdomain localhost6 \uff11\uff12\uff17.0.0.1 loc\u0430lhost ::1 ::1:9090 [v1.::1]"""
STRANGE = ["", *_STRANGE.split()]


def means_this_machine(host: str) -> bool:
    status = 200
    try:
        Guard(None, local=True).check_origin([(b"host", host.encode())])
    except Denied as denied:
        status = denied.status
    assert status in (200, 421)
    return status == 200


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("host", TRUE)
def test_names_of_this_machine_lead_to_the_console(host: str, port: str) -> None:
    assert means_this_machine(host + port)


@pytest.mark.parametrize("form", FORGED)
def test_nothing_around_such_a_name_counts_as_this_machine(form: str) -> None:
    forged = [form.format(name) for name in TRUE]
    assert [host for host in forged if means_this_machine(host)] == []


@pytest.mark.parametrize("host", STRANGE)
def test_other_spellings_and_other_machines_are_refused(host: str) -> None:
    assert not means_this_machine(host)


@given(
    st.sampled_from(TRUE),
    st.text(st.characters(codec="latin-1"), max_size=8),
    st.text(st.characters(codec="latin-1"), max_size=8),
)
def test_only_a_port_may_be_added_to_a_name_of_this_machine(name: str, before: str, after: str) -> None:
    digits = after[1:]
    port = not after or (after[0] == ":" and digits.isascii() and digits.isdigit() and len(digits) <= 5)
    host = before + name + after
    if means_this_machine(host):
        # Digits and dots before or after an address may make another address of this machine: 127.0.0.11.
        assert (not before and port) or set(before + after.partition(":")[0]) <= set("0123456789abcdefABCDEF.:[")


def test_without_a_host_header_nobody_is_let_in() -> None:
    with pytest.raises(Denied):
        Guard(None, local=True).check_origin([])
