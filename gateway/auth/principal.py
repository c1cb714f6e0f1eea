"""On whose behalf a request runs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.auth.sealing import SealingSecrets
from gateway.config import Aliases
from gateway.core.sealing import Sealing


class Principal(Struct, frozen=True):
    """On whose behalf a request runs, and what it may do.

    key       the name of the key in the configuration, never the key; "anonymous" when everybody may call
    team      whose key it is, or None
    models    models it may use, aliases resolved; None is all
    dialects  dialects it may speak; None is all
    priority  among waiting requests the highest goes first
    streams   most streams at once in one process, or None
    connections  likewise
    secrets   seal the texts that it keeps for the gateway; None where all callers are one
    aliases   what names of models mean for it alone; None if nothing of its own
    salt      keeps prefix caches of workers apart from those of other callers; None where all share them
    """

    key: str
    team: str | None = None
    models: frozenset[str] | None = None
    dialects: frozenset[str] | None = None
    priority: int = 0
    salt: str | None = None
    streams: int | None = None
    connections: int | None = None
    secrets: SealingSecrets | None = None
    aliases: Aliases | None = None

    def __repr__(self) -> str:
        # A caller that knows the salt can find out what is cached.
        return f"Principal({self.key!r}, team={self.team!r})"

    @property
    def tenant(self) -> str:
        """The unit that shares stored responses, and takes turns with others if requests wait: the team, or the key of
        a caller without a team. The two have different names."""
        return f"team {self.team}" if self.team is not None else f"key {self.key}"

    def sealing(self) -> Sealing:
        """By what the texts of its tenant are sealed."""
        if self.secrets is None:
            return Sealing(self.tenant, b"")
        return Sealing(self.tenant, self.secrets.of(self.key), self.secrets.find)

    def may_use(self, model: str) -> bool:
        """model is the configured name, not an alias. Answer a forbidden one as if it did not exist."""
        return self.models is None or model in self.models

    def may_speak(self, dialect: str) -> bool:
        return self.dialects is None or dialect in self.dialects


ANONYMOUS = Principal("anonymous")


class PendingAuth(Struct, frozen=True):
    """The caller that a request names. If there is a `prove`, call it with (method, raw path, raw query, body)
    before anything is done for the request. It raises GatewayError when the signature is wrong.

    lasting  the same headers mean the same caller until the keys change: no clock was read
    """

    principal: Principal
    prove: Callable[[str, bytes, bytes, bytes], None] | None = None
    lasting: bool = False
