"""JSON objects inside a body that are read member by member."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.messages import Extra
from gateway.dialects._shared.faults import wrong
from gateway.wire.json import NULL, check_depth, decoded
from gateway.wire.openai.requests.constraints import lift
from gateway.wire.openai.requests.parts import arguments_object

_object = Decoder(dict[str, Raw]).decode


def members_of(text: bytes | str | Raw) -> Extra | None:
    """The members of a JSON object, or None if the text is not one."""
    return decoded(_object, text)


def call_arguments(text: str) -> Raw:
    """The arguments of a model's call as an object on one line, with the model's own numbers and order. A text that is
    not a JSON object is its member `_raw`."""
    return Raw(msgspec.json.format(arguments_object(text).encode(), indent=-1))


def take_object(
    raw: Extra, name: str, known: Collection[str], named: Collection[str], policy: ExtrasPolicy, operation: str
) -> tuple[Extra, list[str]]:
    """Removes the object `name` from `raw`, the members of a body: (those of its members that are known and not null,
    the dotted names of the others). Constraints among the others become members of `raw`.

    Raises GatewayError(BAD_REQUEST) if it is not an object, and under policy "error" for a member that is neither known
    nor among `named`, the members that are dropped under every policy.
    """
    found = members_of(raw.pop(name))
    if found is None:
        raise wrong(name, "must be an object")
    others = {key: value for key, value in found.items() if key not in known and value != NULL}
    if policy == "error":
        sort_extras(policy, (f"{name}.{key}" for key in others if key not in named))
    else:
        others = lift(others, raw, name, operation)
    left = {f"{name}.{key}": value for key, value in others.items()}
    check_depth(left)
    return {key: found[key] for key in known if key in found and found[key] != NULL}, list(left)
