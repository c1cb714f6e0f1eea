"""The options of a simulated worker. By default every delay is 0: it answers as fast as it can."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Options:
    """Settings of one simulated worker; the command line has one flag for each.

    models                served names; the first is the one that replies carry
    adapters              LoRA adapters that are loaded at the start
    host, port            where it listens; port 0 takes a free one
    max_model_len         context length, tokens
    strict_context        answer 400 when prompt + max_tokens exceed the context, instead of shortening max_tokens
    prefill_us_per_token  time to read one prompt token that the prefix cache lacks, microseconds; prompts queue for it
    itl_ms                time between two tokens of one sequence, milliseconds; all running sequences step together
    slots                 sequences that run at once; others wait in order of arrival
    kv_blocks             blocks of 16 tokens that running sequences and the prefix cache share
    prefix_cache          remember prompt blocks
    kv_transfer           has a KV connector: hands computed prompts to other workers, and reads theirs (`kv`)
    kv_events_port        publishes what its prefix cache holds there, as vLLM does; 0 takes a free port
    kv_replay_port        and sends what was published again to who asks there; 0 takes a free port
    queue_limit           requests that may wait before others are answered 503 (None: no limit)
    loading_s             seconds after the start during which /health and generation answer 503
    output_tokens         length of an unscripted reply that nothing else limits; 0 draws 8 to 32 from the prompt
    reasoning             unscripted chat replies think first, as with a reasoning parser
    token_details         report cached prompt tokens (vLLM's --enable-prompt-tokens-details)
    embedding_dims        length of an embedding
    keep_alive_s          idle seconds after which a connection is closed (vLLM: 5); 0 closes after each reply
    fault                 a fault applied to every request, in the grammar of `faults`
    ledger                requests remembered; 0 remembers none (counters still count)
    exit_on_die           the fault `die` ends the process; otherwise it drops all connections and stops listening
    """

    models: tuple[str, ...] = ("sim",)
    adapters: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    max_model_len: int = 8192
    strict_context: bool = False
    prefill_us_per_token: float = 0.0
    itl_ms: float = 0.0
    slots: int = 256
    kv_blocks: int = 65536
    prefix_cache: bool = True
    kv_transfer: bool = False
    kv_events_port: int | None = None
    kv_replay_port: int = 0
    queue_limit: int | None = None
    loading_s: float = 0.0
    output_tokens: int = 0
    reasoning: bool = False
    token_details: bool = False
    embedding_dims: int = 64
    keep_alive_s: float = 5.0
    fault: str = ""
    ledger: int = 10_000
    exit_on_die: bool = False
