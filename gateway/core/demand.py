"""The facts of one request that decide its worker."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Demand(Struct):
    """A pick policy's facts about one request, and the result of the last pick.

    keys      hashes of ever longer prefixes of the prompt, valid in this process only
    ends      the length of each of these prefixes, in estimated tokens
    prompt    estimated tokens of the prompt
    output    the expected cost of the reply, in tokens of a prompt
    beginning  what places a conversation that was not seen before: its first texts; () where nothing is known of it
    opening   what places the first conversation with such tools and system prompt, where these are most of its first
              turn: their first and last texts; else ()
    head      tokens before the first user message if the conversation had turns before; else None
    whole     a hash of the whole prompt, as `keys`; 0 where no turn can follow
    before    tokens of the prompt of the turn before this one, where `head` is not None
    turn      what `whole` was of that prompt
    tokens    the prompt as the engines read it, where they tell what they have cached and a worker was asked; else ()
    chains    keys of their blocks, by the size of a block, as picks need them
    salt      what keeps these tokens apart in the engines' caches
    session   a 64-bit hash of the session that the client named, the same in every gateway; else None

    tenant    who takes turns with others while it waits
    size      bytes of the request's body
    until     when its client gives up, in seconds of the gateway's clock; None if that is not known

    policy    the policy that picked
    why       session | prefix | home | load | turn | trial | only
    matched   tokens of the prompt that the worker was sent before, as far as this gateway knows
    saved     tokens of the prompt that the worker is taken to have in its cache, also where another gateway sent them
    exact     its engine has told that it has these
    charged   tokens that count on the worker until the request is over
    """

    keys: Sequence[int] = ()
    ends: Sequence[int] = ()
    prompt: int = 0
    output: int = 0
    beginning: Sequence[str] = ()
    opening: Sequence[str] = ()
    head: int | None = None
    whole: int = 0
    before: int = 0
    turn: int = 0
    tokens: Sequence[int] = ()
    chains: dict[int, Sequence[int]] = {}
    salt: str | None = None
    session: int | None = None
    tenant: str = ""
    size: int = 0
    until: float | None = None
    policy: str = ""
    why: str = ""
    matched: int = 0
    saved: int = 0
    exact: bool = False
    charged: int = 0

    def take_over(self, other: Demand) -> None:
        """The facts that are the same for every pick of one request."""
        self.tenant, self.size, self.until = other.tenant, other.size, other.until
        self.tokens, self.salt = other.tokens, other.salt

    def forget_prompt(self) -> None:
        """There will be no other pick. What the prompt was known by may be much, and a stream lasts long."""
        self.keys = self.ends = self.tokens = self.beginning = self.opening = ()
        self.chains = {}

    @property
    def picked(self) -> str:
        """Policy, reason and matched share as a structured field (RFC 8941): `prefix;why=home;matched=0.00`, with
        `;exact` behind it where the engine told what matches."""
        if self.why == "only":
            return "only"
        return f"{self.policy};why={self.why};matched={self.share:.2f}{';exact' if self.exact else ''}"

    @property
    def share(self) -> float:
        """The fraction of the prompt that matched, 0 to 1."""
        return min(1.0, self.matched / self.prompt) if self.prompt else 0.0
