"""The options of a simulated worker, and its command line. By default every delay is 0."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any, Self


def option(default: Any, help_text: str, /, *flags: str, **given: Any) -> Any:
    """A field of `Options` with its flags (by default its own name) and their help; `given` goes to argparse."""
    return dataclasses.field(default=default, metadata={"flags": flags, "help": help_text, **given})


@dataclass
class Options:
    """Settings of one simulated worker; the command line has one flag for each."""

    models: tuple[str, ...] = option(("sim",), "served model name; may be repeated; replies carry the first", "--model")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(0, "port; 0 takes a free one", default=8000)
    max_model_len: int = option(8192, "context length, tokens")
    prefill_us_per_token: float = option(0.0, "time to read a prompt token that is not cached, microseconds")
    prompts_at_once: int = option(1, "prompts that are read at the same time, each at that speed")
    itl_ms: float = option(0.0, "time between two tokens of a reply, milliseconds; all replies step together")
    slots: int = option(256, "sequences that run at once; others wait in order of arrival")
    kv_blocks: int = option(65536, "KV blocks of 16 tokens that running sequences and the prefix cache share")
    prefix_cache: bool = option(True, "compute every prompt token", "--no-prefix-cache")
    queue_limit: int | None = option(
        None, "most requests that wait", "--queue-limit", "--max-num-queued-reqs", type=int
    )
    loading_s: float = option(0.0, "seconds of 503 after the start")
    output_tokens: int = option(0, "natural length of a reply; 0 draws 8 to 32 from the prompt")
    token_details: bool = option(False, "report cached prompt tokens in usage")
    embedding_dims: int = option(64, "length of an embedding")
    media: bool = option(True, "serve no sound and no images", "--no-media")

    @classmethod
    def add_flags(cls, out: argparse.ArgumentParser) -> None:
        """Adds a flag for each option, with its default."""
        for one in dataclasses.fields(cls):
            given = {"dest": one.name, "default": one.default, **one.metadata}
            flags = given.pop("flags") or ("--" + one.name.replace("_", "-"),)
            if isinstance(one.default, bool):
                given["action"] = "store_false" if one.default else "store_true"
            elif isinstance(one.default, tuple):
                given |= {"action": "append", "metavar": "NAME", "default": None}
            else:
                given = {"type": type(one.default), **given, "help": given["help"] + " (%(default)s)"}
            out.add_argument(*flags, **given)

    @classmethod
    def of(cls, given: argparse.Namespace) -> Self:
        """The options that a command line names."""
        named = {one.name: getattr(given, one.name) for one in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in named.items() if value is not None})
