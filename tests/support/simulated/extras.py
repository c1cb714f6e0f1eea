"""The endpoints that do not generate: embeddings, models, tokenize, detokenize. Those that rank are in `ranks`."""

from __future__ import annotations

import base64
import math
import random
import struct
import time
import zlib
from typing import Any

import msgspec

from tests.support.simulated import requests as wire
from tests.support.simulated import tokenizer
from tests.support.simulated.answers import Worker, check_model, fault_of, identify, launch, prompt_of
from tests.support.simulated.http import Connection, Request
from tests.support.simulated.jobs import Plain
from tests.support.simulated.ledger import Entry
from tests.support.simulated.plan import Plan
from tests.support.simulated.requests import Chat

ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_created = int(time.time())


def embed(worker: Worker, connection: Connection, request: Request, entry: Entry) -> None:
    """POST /v1/embeddings: unit vectors that depend on the text only."""
    options = worker.options
    asked = wire.decode(wire.embed_decoder, request.body)
    check_model(worker, asked.model)
    given = wire.inputs(asked.input, "input")
    if not given or "" in given or [] in given:
        raise wire.bad("Input must not be empty.", "input")
    if asked.encoding_format not in ("float", "base64", None):
        raise wire.schema("Input should be 'float' or 'base64'", "encoding_format")
    size = asked.dimensions or options.embedding_dims
    if not 0 < size <= options.embedding_dims:
        raise wire.bad(f"dimensions must be between 1 and {options.embedding_dims}, got {size}.", "dimensions")
    rows: list[dict[str, Any]] = []
    tokens = 0
    for index, item in enumerate(given):
        text = item if isinstance(item, str) else tokenizer.decode(item)
        tokens += tokenizer.count(text) if isinstance(item, str) else len(item)
        vector = embedding(text, size)
        value: Any = vector
        if asked.encoding_format == "base64":
            value = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        rows.append({"index": index, "object": "embedding", "embedding": value})
    wire.check_context(max(map(tokenizer.count, map(str, given))), None, options.max_model_len, False)
    fault = fault_of(worker, request, asked.sim_fault)
    ident = entry.id = identify(request, "embd", None)
    body = {
        "id": ident,
        "object": "list",
        "created": int(time.time()),
        "model": options.models[0],
        "data": rows,
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }
    exchange = Plain(worker, connection, entry, fault)
    exchange.body = msgspec.json.encode(body)
    launch(worker, exchange, [Plan(eos=False)], tokens, 0)


def embedding(text: str, size: int) -> list[float]:
    """A unit vector drawn from the text."""
    rng = random.Random(zlib.crc32(text.encode("utf-8", "surrogatepass")))
    raw = [rng.uniform(-1, 1) for _ in range(size)]
    norm = math.sqrt(sum(x * x for x in raw)) or 1.0
    return [x / norm for x in raw]


def models(worker: Worker) -> dict[str, Any]:
    """GET /v1/models."""
    options = worker.options
    rows = []
    for number, name in enumerate((*options.models, *worker.adapters)):
        lora = number >= len(options.models)
        permission = {
            "id": f"modelperm-{zlib.crc32(name.encode()):08x}{number:08x}",
            "object": "model_permission",
            "created": _created,
            **dict.fromkeys(("allow_create_engine",), False),
            **dict.fromkeys(("allow_sampling", "allow_logprobs"), True),
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        rows.append(
            {
                "id": name,
                "object": "model",
                "created": _created,
                "owned_by": "vllm",
                "root": f"/adapters/{name}" if lora else options.models[0],
                "parent": options.models[0] if lora else None,
                "max_model_len": None if lora else options.max_model_len,
                "permission": [permission],
            }
        )
    return {"object": "list", "data": rows}


def change_adapters(worker: Worker, path: str, body: bytes) -> bytes:
    """POST /v1/load_lora_adapter and /v1/unload_lora_adapter, which vLLM has with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
    name = wire.decode(wire.adapter_decoder, body).lora_name
    loads = "unload" not in path
    if loads == (name in worker.adapters):
        state = "has already been loaded" if loads else "cannot be found"
        raise wire.bad(f"The lora adapter '{name}' {state}.", "lora_name")
    (worker.adapters.append if loads else worker.adapters.remove)(name)
    worker.memo.clear()
    return f"Success: LoRA adapter '{name}' {'added' if loads else 'removed'} successfully.".encode()


def tokenize(worker: Worker, body: bytes) -> dict[str, Any]:
    """POST /tokenize."""
    asked = wire.decode(wire.tokenize_decoder, body)
    check_model(worker, asked.model)
    if asked.messages is not None:
        if asked.continue_final_message and asked.add_generation_prompt:
            raise wire.schema("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        text = prompt_of(Chat(messages=asked.messages, tools=asked.tools))
    elif asked.prompt is not None:
        text = asked.prompt
    else:
        raise wire.schema("Field required", "prompt")
    return {
        "count": tokenizer.count(text),
        "max_model_len": worker.options.max_model_len,
        "tokens": tokenizer.encode(text),
        "token_strs": tokenizer.split(text) if asked.return_token_strs else None,
    }


def detokenize(worker: Worker, body: bytes) -> dict[str, Any]:
    """POST /detokenize."""
    asked = wire.decode(wire.detokenize_decoder, body)
    check_model(worker, asked.model)
    return {"prompt": tokenizer.decode(asked.tokens)}
