"""Faults of policies on requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gateway.config.faults import Faults, Path
from gateway.config.kinds import SECRET_HEADER, header_fault
from gateway.config.request_policies import RequestPolicy
from gateway.config.rules import Facts, header_faults

_GATEWAYS = frozenset({"x-request-id", "traceparent", "tracestate"})
"""Headers that every request to a worker has already."""


def policies(facts: Facts) -> Faults:
    for name, policy in facts.config.request_policies.items():
        at = ("request_policies", name)
        if not policy.model_fields_set & set(policy.ANY_OF):
            yield at, f"changes nothing; it needs one of {', '.join(policy.ANY_OF)}"
        if not policy.caps and "over_cap" in policy.model_fields_set:
            yield (*at, "over_cap"), "has no effect without caps"
        yield from _members(facts, at, policy)
        yield from header_faults((*at, "headers"), policy.headers)
        for header in policy.headers:
            if header.lower() in _GATEWAYS:
                yield (*at, "headers", header), "is a header that workers get anyway"
            elif SECRET_HEADER.search(header):
                yield (*at, "headers", header), "may hold a key: set that by api_key_file or headers of the model"
        for index, header in enumerate(policy.pass_headers):
            if SECRET_HEADER.search(header):
                yield (*at, "pass_headers", index), "may hold a client's key, which workers do not get"
            elif header.lower() in _GATEWAYS:
                yield (*at, "pass_headers", index), "is a header that workers get anyway"
            elif wrong := header_fault(header, "x"):
                yield (*at, "pass_headers", index), wrong


def _members(facts: Facts, at: Path, policy: RequestPolicy) -> Faults:
    if facts.known is None or (read := facts.known.member) is None:
        return
    given: Iterator[tuple[str, str, tuple[object, ...]]] = chain(
        (("defaults", name, (value,)) for name, value in policy.defaults.items()),
        (("force", name, (value,)) for name, value in policy.force.items()),
        (("caps", name, (value,)) for name, value in policy.caps.items()),
        (("drop", name, ()) for name in policy.drop),
        (("rename", name, (new,)) for name, new in policy.rename.items()),
    )
    for option, name, value in given:
        part = policy.drop.index(name) if option == "drop" else name
        try:
            member = read(name, *value) if option != "rename" else read(name)
            if option == "rename" and (other := read(str(value[0]))).known and other.key != member.key:
                raise ValueError("gets a name that has another meaning")
        except ValueError as error:
            yield (*at, option, part), str(error)
            continue
        if option == "caps" and not member.bounded:
            unknown = "the gateway knows no member of this name"
            why = "its value is not one number that the gateway knows" if member.known else unknown
            yield (*at, option, part), f"cannot be bounded: {why}"
        if name == "n" and option in ("defaults", "force") and value != (1,):
            yield (*at, option, name), "may be 1 alone: most client APIs have no form for several replies"
        if option == "force" and name in policy.defaults:
            yield (*at, "defaults", name), "has no effect beside force"
