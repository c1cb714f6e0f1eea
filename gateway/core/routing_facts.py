"""The facts of one request that decide its worker."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

Texts = Sequence[str] | int
"""Texts that place a conversation on the ring, or their hash; () or 0 for none."""


class RoutingFacts(Struct):
    """A pick policy's facts about one request, and the result of the last pick.

    keys             hashes of ever longer prefixes of the prompt, valid in this process only
    ends             the length of each of these prefixes, in estimated tokens
    prompt           estimated tokens of the prompt
    output           the expected cost of the reply, in tokens of a prompt
    first_texts      texts that place a conversation that is not known yet; () if its beginning is unknown. Behind
                     `forget_prompt` their hash, and so for the next
    system_texts     the first and last texts of tools and system prompt, if these are most of the first turn: they
                     place the first conversation that has them; else ()
    system_tokens    tokens before the first user message if the conversation had turns before; else None
    prompt_key       a hash of the whole prompt, as `keys`; 0 if no turn can follow
    previous_tokens  tokens of the prompt of the previous turn, if `system_tokens` is not None
    previous_key     the `prompt_key` of that prompt
    tokens           the prompt's tokens as the engines read it, if engines publish their caches and a worker returned
                     them; else ()
    chains           keys of the blocks of these tokens, by the size of a block, as picks need them
    salt             keeps these tokens apart in the engines' caches
    session          a 64-bit hash of the session that the client named, the same in every gateway; else None

    tenant           takes turns with other tenants while the request waits
    size             bytes of the request's body
    until            when its client gives up, in seconds of the gateway's clock; None if that is not known
    patience         seconds for which it waits while no worker could serve it: it has lost one, and one may return

    policy           the policy that picked
    why              session | prefix | home | load | turn | trial | only
    matched          tokens of the prompt that the worker was sent before, as far as this gateway knows
    saved            tokens of the prompt that the worker is believed to have in its cache, from any gateway
    exact            the worker's engine has published that it has the matched tokens
    charged          tokens that count on the worker until the request is over
    """

    keys: Sequence[int] = ()
    ends: Sequence[int] = ()
    prompt: int = 0
    output: int = 0
    first_texts: Texts = ()
    system_texts: Texts = ()
    system_tokens: int | None = None
    prompt_key: int = 0
    previous_tokens: int = 0
    previous_key: int = 0
    tokens: Sequence[int] = ()
    chains: dict[int, Sequence[int]] = {}
    salt: str | None = None
    session: int | None = None
    tenant: str = ""
    size: int = 0
    until: float | None = None
    patience: float = 0.0
    policy: str = ""
    why: str = ""
    matched: int = 0
    saved: int = 0
    exact: bool = False
    charged: int = 0

    def take_over(self, other: RoutingFacts) -> None:
        """The facts that are the same for every pick of one request."""
        self.tenant, self.size, self.until = other.tenant, other.size, other.until
        self.tokens, self.salt = other.tokens, other.salt

    def forget_prompt(self, goes_on: bool) -> None:
        """Drops the facts about the prompt that are large for a long one; all, unless another worker may be picked to
        go on with the reply. Its texts become their hashes."""
        self.tokens, self.chains = (), {}
        if not goes_on:
            self.keys = self.ends = self.first_texts = self.system_texts = ()
            return
        if self.first_texts:
            self.first_texts = home_of(self.first_texts)
        if self.system_texts:
            self.system_texts = home_of(self.system_texts)

    @property
    def picked(self) -> str:
        """Policy, reason and matched share as a structured field (RFC 8941): `prefix;why=home;matched=0.00`, with
        `;exact` behind it if the engine published what matches."""
        if self.why == "only":
            return "only"
        return f"{self.policy};why={self.why};matched={self.share:.2f}{';exact' if self.exact else ''}"

    @property
    def share(self) -> float:
        """The fraction of the prompt that matched, 0 to 1."""
        return min(1.0, self.matched / self.prompt) if self.prompt else 0.0


def home_of(texts: Texts) -> int:
    """The `ring_hash` of a conversation's `first_texts` or `system_texts`: 64 bits, the same in every gateway. Most
    requests go where their prompt is, and need none."""
    return texts if isinstance(texts, int) else ring_hash("\x00".join(texts).encode("utf-8", "surrogatepass"))


def ring_hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") or 1
