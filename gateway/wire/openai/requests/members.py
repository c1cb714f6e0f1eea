"""Members of OpenAI's API that somebody else than the client sets, in requests that were read already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.errors import GatewayError
from gateway.core.fields import body_members
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import Chat, Complete, Embed, Op, Sampling
from gateway.wire.json import encode, members
from gateway.wire.openai import operations
from gateway.wire.openai.requests.fields import EXAMPLES, FIELDS, SAMPLES

_KINDS: Mapping[str, type[Chat | Complete | Embed]] = {"chat": Chat, "complete": Complete, "embed": Embed}
_KNOWN = body_members({kind: FIELDS[kind] for kind in _KINDS})
_FIELDS = {kind: {field.name: field for field in FIELDS[kind]} for kind in _KINDS}
_REFUSED = {kind: {field.name for field in FIELDS[kind] if field.handling == "refused"} for kind in _KINDS}
# The text of the request, its form, and what the gateway decides.
_CLIENTS = frozenset(
    (
        "model",
        "messages",
        "prompt",
        "input",
        "suffix",
        "stream",
        "stream_options",
        "tools",
        "functions",
        "function_call",
    )
)
# Without tools they have no meaning, and engines refuse them.
_OF_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})
# Members that another one needs beside it.
_BESIDE: Mapping[str, Mapping[str, Any]] = {"top_logprobs": {"logprobs": True}}
# One attribute has two names on this wire.
_ALSO = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Members whose values differ by kind of request.
_BY_KIND = frozenset({"logprobs"})
# Members of which 0 and less mean "all".
_UP_TO_ALL = frozenset({"top_k"})
_ANY: Any = object()
_NOT_COMPARED = frozenset({"raw", "extra", "unnamed", "dropped", "memo", "sampling"})
_SAMPLING = Sampling.__struct_fields__


class _Form(Struct, frozen=True):
    """A member in operations of one kind.

    values   of attributes: what the member says. absent: what they are without it
    sampling, no_sampling  the same for `Sampling`
    canonical  the member has attributes; any other one is kept in `extra` too
    """

    values: Mapping[str, Any]
    absent: Mapping[str, Any]
    sampling: Mapping[str, Any]
    no_sampling: Mapping[str, Any]

    @property
    def canonical(self) -> bool:
        return bool(self.values or self.sampling)


class Member:
    """A member of a body with a value, in each kind of operation that has it. key: one for names that mean the same.
    names: those, and of members that have no meaning without it.

    Raises ValueError, which completes a sentence about the member, if no request can have it or this value.
    """

    def __init__(self, name: str, value: Any = _ANY) -> None:
        """Without a value it is there to ask for, and to drop."""
        kinds = _kinds_of(name)
        if value is _ANY:
            value = next((_FIELDS[kind][name].sample for kind in kinds if name in _FIELDS[kind]), SAMPLES.get(name))
        self.name = name
        self.key = "max_tokens" if name in _ALSO else name
        self.value = value
        self.names = (name, _ALSO.get(name, name), *[one for one, needed in _BESIDE.items() if name in needed])
        self._json = Raw(encode(value))
        self._beside = {one: Raw(encode(beside)) for one, beside in _BESIDE.get(name, {}).items()}
        self._forms: dict[type[Op], _Form] = {}
        wrong: ValueError | None = None
        for kind in kinds:
            try:
                self._forms[_KINDS[kind]] = _form(kind, name, value)
            except ValueError as error:
                wrong = wrong or error
        if wrong is not None and not (self._forms and name in _BY_KIND):
            raise wrong

    def is_set(self, op: Op) -> bool:
        """Whether the request has the member, with any value."""
        form = self._of(op)
        if form is None:
            return False
        if any(name in members for name in (self.name, _ALSO.get(self.name)) for members in (op.raw or (), op.extra)):
            return True
        sampling = getattr(op, "sampling", None)
        return any(getattr(op, name) != value for name, value in form.absent.items()) or any(
            getattr(sampling, name) != value for name, value in form.no_sampling.items()
        )

    def put(self, op: Op) -> bool:
        """Gives the request the member with this value. Returns whether that changed what the request says."""
        form = self._of(op)
        if form is None:
            return False
        if form.canonical and self._holds(op, form):
            return False
        self._set(op, form.values, form.sampling)
        if op.raw is not None:
            op.raw = {**_without(op.raw, self.name), **self._beside, self.name: self._json}
        if not form.canonical:
            op.extra = {**op.extra, self.name: self._json}
        return True

    def drop(self, op: Op) -> bool:
        """Takes the member from the request. Returns whether the request had it."""
        if not self.is_set(op):
            return False
        form = self._of(op)
        assert form is not None
        self._set(op, form.absent, form.no_sampling)
        for name in self.names:
            if op.raw is not None:
                op.raw = _without(op.raw, name)
            op.extra = _without(op.extra, name)
        return True

    def exceeds(self, op: Op) -> bool:
        """Whether the request asks for more than this value. A request without `max_tokens` asks for all that fits."""
        form = self._of(op)
        if form is None:
            return False
        asked = [getattr(op, name) for name in form.values]
        asked += [getattr(op.sampling, name) for name in form.sampling]  # type: ignore[union-attr]
        if self.name in _UP_TO_ALL and any(value is not None and value <= 0 for value in asked):
            return True
        return any(self.name in _ALSO if value is None else value > self.value for value in asked)

    @property
    def bounded(self) -> bool:
        """Whether its value is a number, and the gateway knows requests' own."""
        values = [[self.value, *form.values.values(), *form.sampling.values()] for form in self._forms.values()]
        return all(len(found) == 2 and all(type(one) in (int, float) for one in found) for found in values)

    @property
    def known(self) -> bool:
        """Whether the gateway gives it a meaning."""
        return any(form.canonical for form in self._forms.values())

    def _of(self, op: Op) -> _Form | None:
        if self.name in _OF_TOOLS and not getattr(op, "tools", ()):
            return None
        return self._forms.get(type(op))

    def _holds(self, op: Op, form: _Form) -> bool:
        sampling = getattr(op, "sampling", None)
        return all(getattr(op, name) == value for name, value in form.values.items()) and all(
            getattr(sampling, name) == value for name, value in form.sampling.items()
        )

    def _set(self, op: Op, values: Mapping[str, Any], sampling: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(op, name, value)
        if sampling:
            assert isinstance(op, (Chat, Complete))
            op.sampling = replace(op.sampling, **sampling)
        if isinstance(op, Complete) and op.seeds:  # they say how many replies there are, and go before a seed
            seed, count = sampling.get("seed"), min(len(op.seeds), op.n * len(op.prompts))
            op.seeds = op.seeds[:count] if seed is None else tuple(range(seed, seed + count))


def settle_names(op: Op, ours: frozenset[str]) -> list[str]:
    """Leaves one of two names of the same member in the body, the one that counts. Returns the names that were taken
    away because they are one of `ours` but for capitals: some workers read them as the same."""
    if op.raw is not None and op.raw.keys() >= _ALSO.keys():
        op.raw = {name: value for name, value in op.raw.items() if name != "max_tokens"}
    found = {*(op.raw or ()), *op.extra} - ours
    alike = [name for name in sorted(found) if name.casefold() in ours]
    if alike:
        op.raw = op.raw and {name: value for name, value in op.raw.items() if name not in alike}
        op.extra = {name: value for name, value in op.extra.items() if name not in alike}
    return alike


def _kinds_of(name: str) -> list[str]:
    """The kinds of operations that have the member: those that know it, else all that generate. Raises ValueError."""
    if name in _CLIENTS:
        raise ValueError("is the client's own to say")
    kinds = [kind for kind in _KINDS if name in _KNOWN[kind]]
    if any(name in _REFUSED[kind] for kind in kinds):
        raise ValueError("is a member that no request may have")
    return kinds or ["chat", "complete"]


def _form(kind: str, name: str, value: Any) -> _Form:
    """The attributes are those that a sample of the member changes: `value` may be what they are without it."""
    field = _FIELDS[kind].get(name)
    tools = field.beside if field is not None and name in _OF_TOOLS else {}
    beside = {**tools, **_BESIDE.get(name, {})}
    bare, op = _read(kind, tools), _read(kind, {**beside, name: value})
    value_of_table = field.sample if field is not None else SAMPLES.get(name)  # the table has OpenAI's alone
    sample = op if value_of_table is None else _read(kind, {**beside, name: value_of_table})
    names = [one for one in op.__struct_fields__ if one not in _NOT_COMPARED]
    changed = [one for one in names if not (getattr(op, one) == getattr(bare, one) == getattr(sample, one))]
    drawn: list[str] = []
    if isinstance(op, (Chat, Complete)) and isinstance(bare, (Chat, Complete)) and isinstance(sample, (Chat, Complete)):
        by_all = [one.sampling for one in (op, bare, sample)]
        drawn = [one for one in _SAMPLING if len({str(getattr(each, one)) for each in by_all}) > 1]
    return _Form(
        {one: getattr(op, one) for one in changed},
        {one: getattr(bare, one) for one in changed},
        {one: getattr(op.sampling, one) for one in drawn},  # type: ignore[union-attr]
        {one: getattr(bare.sampling, one) for one in drawn},  # type: ignore[union-attr]
    )


def _read(kind: str, given: Mapping[str, Any]) -> Op:
    body = encode({**EXAMPLES[kind][0].body, **given})
    request = Request("POST", "/", [JSON_TYPE], body)
    try:
        return operations.read(request, members(request), kind, _KNOWN[kind], "pass")
    except GatewayError as error:
        raise ValueError(f"is refused in every request: {error.message}") from None


def _without(found: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    return {one: value for one, value in found.items() if one not in (name, _ALSO.get(name))}
