"""When two requests are equal: by all that decides the reply, and nothing that decides only its form."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.core.messages import Chat, Generate
from gateway.kernel.call import Call
from gateway.wire.openai.requests.views import CHAT_MEMBERS, TEXT_MEMBERS

_OWN: Final = frozenset({"user", "end_user", "stream", "include_usage", "early_usage", "timeout", "cache_key", "salt"})
"""Fields about the caller, the transfer, and prefix caches."""
_FORM: Final = frozenset({"view", "memo", "to_store", "stores", "dropped", "unnamed", "optional", "rewritten"})
"""Fields by which the dialect writes the reply, or names what was left out."""
_OTHERWISE: Final = frozenset({"model", "model_hints", "raw", "wire", "fit_output"})
"""Fields that `key_of` reads in another way."""
_LEFT_OUT: Final = _OWN | _FORM | _OTHERWISE
_RAW: Final = frozenset({"model", "stream", "stream_options", "user", "seed"}) | {
    *("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "store")
}
_TRANSFER: Final = frozenset({b"x-request-id", b"accept"})

_encode = msgspec.json.Encoder(order="deterministic").encode


def key_of(call: Call, tenant: str) -> bytes:
    """The digest by which the reply to the request is kept. Behind the operation it has the model as it is set up now,
    whether guards see the reply, and the headers and names of members that a request policy gives to workers."""
    op, served, outgoing = call.asked, call.served, call.outgoing
    members = {name: getattr(op, name) for name in op.__struct_fields__ if name not in _LEFT_OUT}
    if isinstance(op, Generate):  # with temperature 0 a seed decides nothing, and some dialects draw one
        bias = sorted((op.sampling.logit_bias or {}).items())  # JSON has no keys that are numbers
        members |= {"sampling": replace(op.sampling, seed=None, logit_bias=None), "bias": bias, "seeds": ()}
    raw: dict[str, Any] = {}
    if isinstance(op, Generate) and op.raw is not None:  # it has more than the canonical fields
        canonical = CHAT_MEMBERS if type(op) is Chat else TEXT_MEMBERS
        known = _RAW if op.unnamed else {*_RAW, *canonical, *op.extra}
        raw = {name: value for name, value in op.raw.items() if name not in known}
    kinds = [type(part).__name__ for message in getattr(op, "messages", ()) for part in message.parts]
    # A worker measures the prompt yet, and cuts the reply for those that want it cut.
    cuts = outgoing.unmeasured and getattr(op, "fit_output", False)
    headers: list[tuple[bytes, bytes]] = []
    names: Mapping[str, str] = {}
    if outgoing.finish is not None:
        names = outgoing.finish.names
        own = _TRANSFER | {name for name, _ in call.context}
        headers = [one for one in outgoing.request.headers if one[0] not in own]
    model = (served.name, served.adapter, served.backend.name, served.can.upstream_model)
    facts = (type(op).__name__, tenant, model, members, kinds, raw, cuts, call.hold is not None, headers, names)
    return sha256(_encode(facts)).digest()
