"""Policies on requests: members that are set, bounded or taken away, a system message, headers for workers.

Every policy that matches a request counts. If two of them name the same member, the nearest counts: one
that matches the key, then one that matches the team, then one that matches the model; of two alike, the later one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.auth import Principal
from gateway.config import Config
from gateway.config.request_policies import RequestPolicy
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Headers, Request
from gateway.core.messages import Chat, CountTokens, Message, Op, Text
from gateway.features import Built, Parts, Police
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.wire.json import encode, renamed
from gateway.wire.openai.requests.members import Member, settle_names

HEADER = b"x-dragoman-policy"
_NEAREST = ("model", "team", "key")
PRESETS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "openai-reasoning": (
        (
            *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
            *("logprobs", "top_logprobs", "logit_bias"),
        ),
        {"max_tokens": "max_completion_tokens"},
    )
}
"""By name: the members that models of the family refuse, and those that they have under another name. Source: OpenAI's
guide to reasoning models."""


@dataclass
class Rules:
    """The rules for a request, of all policies that match it. refuse: the caps that refuse instead of lowering. ruled:
    the names of the members that clients do not decide. adds: the most bytes that they add to a request."""

    defaults: dict[str, Member] = field(default_factory=dict)
    force: dict[str, Member] = field(default_factory=dict)
    caps: dict[str, Member] = field(default_factory=dict)
    least: Member | None = None  # the cap on `max_tokens`, for `min_tokens`: engines refuse a least above the most
    refuse: set[str] = field(default_factory=set)
    drop: dict[str, Member] = field(default_factory=dict)
    system: str | None = None
    rename: dict[str, str] = field(default_factory=dict)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    passed: frozenset[bytes] = frozenset()
    ruled: frozenset[str] = frozenset()
    adds: int = 0

    def add(self, policy: RequestPolicy) -> None:
        """Adds a policy that is nearer than those before."""
        caps = _by_key(policy.caps)
        self.defaults.update(_by_key(policy.defaults))
        self.force.update(_by_key(policy.force))
        self.caps.update(caps)
        if "max_tokens" in caps:
            self.least = Member("min_tokens", caps["max_tokens"].value)
        self.refuse = self.refuse | caps.keys() if policy.over_cap == "refuse" else self.refuse - caps.keys()
        drop, rename = PRESETS[policy.preset] if policy.preset is not None else ((), {})
        self.drop.update({member.key: member for member in map(Member, (*drop, *policy.drop))})
        self.rename.update({**rename, **policy.rename})
        self.system = policy.system or self.system
        self.headers.update({name.lower().encode(): value.encode() for name, value in policy.headers.items()})
        self.passed |= {name.lower().encode() for name in policy.pass_headers}
        for found in (self.defaults, self.force, self.caps):
            for name in found.keys() & self.drop.keys():
                del found[name]
        ruled = [*self.force.values(), *self.caps.values(), *self.drop.values()]
        self.ruled = frozenset(name for member in ruled for name in member.names)
        values = [member.value for member in (*self.defaults.values(), *self.force.values())]
        self.adds = len(encode(values)) + len((self.system or "").encode())

    def apply(self, op: Op) -> tuple[list[str], list[str]]:
        """Changes the request. Returns the names of the members that it had and lacks now, and what else of it became
        another than it was: `name`, or `name=value` for a cap.

        Raises GatewayError(BAD_REQUEST) for a cap that refuses."""
        if type(op) is CountTokens:  # members such as chat_template_kwargs decide how long the prompt is
            op.prompt_of = copy(op.prompt_of)  # copies of `op` share it
            self._set(op.prompt_of)
            return [], []
        dropped, changed = self._set(op)
        for key, cap in self.caps.items():
            if cap.exceeds(op):
                given = cap.is_set(op)
                if given and key in self.refuse:
                    message = f"'{cap.name}' may be at most {cap.value} here"
                    raise GatewayError(Kind.BAD_REQUEST, message, param=cap.name, code="over_cap")
                cap.put(op)
                if key == "max_tokens" and self.least is not None and self.least.exceeds(op):
                    self.least.put(op)
                if given:
                    changed.append(f"{cap.name}={cap.value}")
        return dropped, changed

    def _set(self, op: Op) -> tuple[list[str], list[str]]:
        """Does all but caps. Returns what `apply` does."""
        dropped = settle_names(op, self.ruled)
        dropped += [member.name for member in self.drop.values() if member.drop(op)]
        for member in self.defaults.values():
            if not member.is_set(op):
                member.put(op)
        changed = []
        for member in self.force.values():
            given = member.is_set(op)
            if member.put(op) and given:
                changed.append(member.name)
        if self.system is not None and isinstance(op, Chat):
            op.messages = (Message("system", (Text(self.system),)), *op.messages)
            op.rewritten = True
        return dropped, changed

    def finish(self, client: Headers) -> Finish | None:
        """The change of each request for a worker; None if there is none. client: the headers of its request."""
        if not (self.rename or self.headers or self.passed):
            return None
        return Finish(self.rename, [*[one for one in client if one[0] in self.passed], *self.headers.items()])


class Finish(NamedTuple):
    """Implements kernel.outgoing.Finish. headers: those that workers get."""

    names: Mapping[str, str]
    headers: Headers

    def __call__(self, request: Request) -> None:
        request.headers = [*request.headers, *self.headers]
        if self.names and JSON_TYPE in request.headers:
            request.body = renamed(request.body, self.names)


def _by_key(given: Mapping[str, Any]) -> dict[str, Member]:
    return {member.key: member for member in (Member(name, value) for name, value in given.items())}


class RequestPolicies(Feature):
    """Applies those of `policies`, by name and the farthest first, whose keys and teams are the caller's. copied:
    requests for the model may be copied for another one, which has policies of its own."""

    def __init__(self, policies: Mapping[str, RequestPolicy], copied: bool = False) -> None:
        self._policies = tuple(policies.items())
        self._copied = copied
        self._rules: dict[tuple[int, ...], Rules] = {}

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            if self._copied and call.untouched is None:
                call.untouched = copy(call.asked)
            rules = self.rules_of(call.principal)
            dropped, changed = rules.apply(call.asked)
            if dropped:
                call.reply.name_dropped(tuple(dropped))
            if changed:
                call.reply.headers.append((HEADER, ", ".join(changed).encode()))
            call.outgoing.finish = rules.finish(call.request.headers)
            return inner(call)

        return answer

    def around_workers(self, inner: Step) -> Step:
        def workers(call: Call) -> Awaitable[None]:
            call.routing.size += self.rules_of(call.principal).adds  # the queue's bound is on what waits there
            return inner(call)

        return workers

    def police(self, op: Op, caller: Principal, client: Headers) -> Finish | None:
        """Implements features.Police."""
        rules = self.rules_of(caller)
        rules.apply(op)
        return rules.finish(client)

    def rules_of(self, principal: Principal) -> Rules:
        """The rules for requests of a caller, made once for all callers that the same policies match."""
        found = tuple([at for at, (_, policy) in enumerate(self._policies) if _matches(policy, principal)])
        rules = self._rules.get(found)
        if rules is None:
            rules = self._rules[found] = Rules()
            for at in found:
                rules.add(self._policies[at][1])
        return rules

    def names(self, principal: Principal) -> list[str]:
        """The policies for requests of a caller, the farthest first."""
        return [name for name, policy in self._policies if _matches(policy, principal)]


def _matches(policy: RequestPolicy, caller: Principal) -> bool:
    match = policy.match
    return ("key" not in match or caller.key in match["key"]) and ("team" not in match or caller.team in match["team"])


def build(parts: Parts) -> Built | None:
    config = parts.config
    if not config.request_policies:
        return None

    def police(model: str) -> Police | None:
        found = of_model(config, model)
        return None if found is None else found.police

    parts.offers.police = police
    return Built(of_model=lambda model: of_model(config, model.name))


def of_model(config: Config, name: str) -> RequestPolicies | None:
    """The policies on requests for a model; None if there are none."""
    ranked = sorted(config.request_policies.items(), key=lambda one: _distance(one[1]))
    found = {one: policy for one, policy in ranked if name in _models(policy, name, config)}
    copied = getattr(config.models.get(name), "mirror", None) is not None  # an option that goes with its folder
    return RequestPolicies(found, copied) if found else None


def _distance(policy: RequestPolicy) -> int:
    """How near the policy is, the farthest first."""
    return max([_NEAREST.index(name) + 1 for name in policy.match], default=0)


def _models(policy: RequestPolicy, name: str, config: Config) -> Collection[str | None]:
    """The models that the policy is for, among them `name` if it is for all."""
    return [config.resolve(one) for one in policy.match.get("model", (name,))]
