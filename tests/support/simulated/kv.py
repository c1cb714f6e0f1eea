"""The exchange of workers with a KV connector: one computes a prompt, another one reads the result and generates.

As vLLM's NixlConnector has it: a request with `do_remote_decode` keeps the prompt's blocks, and its reply says where
they are; a request with those places and `do_remote_prefill` reads them instead of computing the prompt. Stricter than
vLLM, which goes on without a transfer: a wrong exchange is refused. A block is stood for by a checksum of the prompt up
to its end, so that a worker knows those of its own prompt again; nothing is sent between workers.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from typing import Any

from tests.support.simulated import tokenizer
from tests.support.simulated.options import Options
from tests.support.simulated.requests import Generate, bad

_BLOCK_CHARS = 16 * tokenizer.CHARS
_NAME = "kv_transfer_params"
_PLACES = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


def blocks(prompt: str) -> list[int]:
    """A number for each block of 16 tokens, the last one too if it is not whole."""
    data = prompt.encode("utf-8", "surrogatepass")
    found, sum_ = [], 0
    for at in range(0, len(data), _BLOCK_CHARS):
        sum_ = zlib.crc32(data[at : at + _BLOCK_CHARS], sum_)
        found.append(sum_)
    return found


class Connector:
    """One worker's. Without it (`Options.kv_transfer`) the parameters are ignored, as in vLLM."""

    def __init__(self, options: Options, engine: str) -> None:
        self._options = options
        self._engine = engine
        self._read: deque[str] = deque(maxlen=10_000)

    def role(self, asked: Generate, prompts: list[str], limit: int | None) -> str:
        """ "prefill" or "decode"; "" for a request that has no part in an exchange. Raises Refused for a wrong one."""
        params = asked.kv_transfer_params
        if not self._options.kv_transfer or not params:
            return ""
        first, second = bool(params.get("do_remote_decode")), bool(params.get("do_remote_prefill"))
        if first == second:
            raise bad("exactly one of do_remote_decode and do_remote_prefill must be true", _NAME)
        if len(prompts) != 1 or (asked.n or 1) != 1 or asked.use_beam_search:
            raise bad("only one sequence can be handed over", _NAME)
        if first:
            if asked.stream or limit != 1:
                raise bad("a prompt for another worker needs max_tokens 1 and no stream", _NAME)
            return "prefill"
        if missing := [name for name in _PLACES if params.get(name) is None]:
            raise bad(f"{missing[0]} is missing", _NAME)
        if params["remote_engine_id"] == self._engine:
            raise bad("the blocks are this worker's own", _NAME)
        if params["remote_block_ids"] != [blocks(prompts[0])]:
            raise bad("the blocks are those of another prompt", _NAME)
        if params["remote_request_id"] in self._read:
            raise bad("the blocks were read before", _NAME)
        self._read.append(params["remote_request_id"])
        return "decode"

    def places(self, ident: str, prompt: str, tokens: int, port: int) -> dict[str, Any]:
        """What the reply to the first request says in `kv_transfer_params`."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks(prompt)],
            "remote_engine_id": self._engine,
            "remote_request_id": f"{ident}-{random.getrandbits(32):08x}",
            "remote_host": self._options.host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
