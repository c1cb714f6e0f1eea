"""Faults of policies on requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gateway.config.faults import Faults, Path
from gateway.config.kinds import header_fault
from gateway.config.request_policies import RequestPolicy
from gateway.config.rules import Facts, header_faults

_NEVER_PASSED = frozenset({"authorization", "cookie", "proxy-authorization"})


def policies(facts: Facts) -> Faults:
    for name, policy in facts.config.request_policies.items():
        at = ("request_policies", name)
        if not policy.model_fields_set & set(policy.ANY_OF):
            yield at, f"changes nothing; it needs one of {', '.join(policy.ANY_OF)}"
        if not policy.caps and "over_cap" in policy.model_fields_set:
            yield (*at, "over_cap"), "has no effect without caps"
        yield from _members(facts, at, policy)
        yield from header_faults((*at, "headers"), policy.headers)
        keys = facts.known.key_headers if facts.known is not None else frozenset[bytes]()
        for index, header in enumerate(policy.pass_headers):
            if header.lower() in _NEVER_PASSED or header.lower().encode() in keys:
                yield (*at, "pass_headers", index), "may hold a client's key, which workers do not get"
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
        (("rename", name, ()) for name in policy.rename),
    )
    for option, name, value in given:
        place = policy.drop.index(name) if option == "drop" else name
        try:
            member = read(name, *value)
        except ValueError as error:
            yield (*at, option, place), str(error)
            continue
        if option == "caps" and not member.bounded:
            yield (*at, option, place), "cannot be bounded: its value is not one number that the gateway knows"
        if option == "force" and name in policy.defaults:
            yield (*at, "defaults", name), "has no effect beside force"
