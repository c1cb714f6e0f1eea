"""How vLLM's workers hand a computed prompt on: the exchange that its KV connectors expect.

A first request with `kv_transfer_params: {"do_remote_decode": true}` and one token to generate makes a worker compute
the prompt and keep its KV blocks. Its reply says in `kv_transfer_params` where they are. With those in a second
request, another worker reads the blocks instead of computing the prompt. Source: the NixlConnector of vLLM 0.33,
`distributed/kv_transfer/kv_connector/v1/nixl`.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.wire.json import encode, members_of
from gateway.wire.openai.replies import views as wire

_ASK = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_ONE, _NO = Raw(b"1"), Raw(b"false")
# The first request leaves these out: it is not streamed, has one token, and nobody reads its text.
_LATER = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "return_token_ids")
# Member -> the values with which a prompt can be computed elsewhere. Others need all of the prompt's results, or more
# than one sequence.
_SINGLE = {
    "n": (b"1", b"null"),
    "best_of": (b"1", b"null"),
    "use_beam_search": (b"false", b"null"),
    "echo": (b"false", b"null"),
    "prompt_logprobs": (b"null",),
    "kv_transfer_params": (b"null",),
}


class _TransferIn(Struct):
    kv_transfer_params: dict[str, Raw] | None = None


_transfer = msgspec.json.Decoder(_TransferIn)


class KvTransfer:
    """Implements core.ports.Handover."""

    def first(self, request: Request) -> Request | None:
        members = members_of(request.body)
        if any(bytes(members.get(name, b"null")) not in values for name, values in _SINGLE.items()):
            return None
        prompt = bytes(members.get("prompt", b'""'))
        if prompt[:1] == b"[" and prompt[1:].lstrip()[:1] in (b'"', b"["):  # several prompts
            return None
        if b"1" in (bytes(members.get(name, b"")) for name in ("max_tokens", "max_completion_tokens")):
            return None
        body = {name: value for name, value in members.items() if name not in _LATER}
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = _ONE
        body["max_tokens"] = _ONE
        body["stream"] = _NO
        body["kv_transfer_params"] = _ASK
        return replace(request, body=encode(body))

    def handed(self, response: Response) -> bytes:
        params = wire.decoded(response.body, _transfer).kv_transfer_params
        if not params:
            raise GatewayError(Kind.UPSTREAM, "the worker has no KV connector", code="no_kv_transfer")
        return encode(params)

    def second(self, request: Request, handed: bytes) -> Request:
        members = members_of(request.body)
        members["kv_transfer_params"] = Raw(handed)
        return replace(request, body=encode(members))
