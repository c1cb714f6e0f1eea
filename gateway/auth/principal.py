"""On whose behalf a request runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import force_setattr

from gateway.auth.sealing import SealingSecrets
from gateway.config import Aliases
from gateway.core.sealing import Sealing


def tenant_of(key: str, team: str | None, identity: str) -> str:
    """See `Principal.tenant`. No name holds a line feed, so no two callers have the same one."""
    if team is not None:
        return f"team {team}"
    return f"key {key}\n{identity}" if identity else f"key {key}"


class TeamBounds(Struct, eq=False):
    """The bounds of all callers of one team. They change with the team's entry, and its callers hold this object: a
    change is in force for all of them at once.

    models    those that they may use at most, aliases resolved; None is all
    disabled  they are refused
    """

    models: frozenset[str] | None = None
    disabled: bool = False


UNBOUND = TeamBounds()
"""The bounds of callers without a team, or whose team has neither keys nor an entry."""


class Principal(Struct, frozen=True):
    """On whose behalf a request runs, and what it may do.

    key       the name of the key in the configuration, never the key; "anonymous" when everybody may call
    team      whose key it is, or None
    models    models it may use, aliases resolved, as its key or token says; None is all
    dialects  dialects it may speak; None is all
    priority  among waiting requests the highest goes first
    streams   most streams at once in one process, or None
    connections  likewise
    secrets   seal the texts that it keeps for the gateway; None where all callers are one
    aliases   what names of models mean for it alone; None if nothing of its own
    salt      keeps prefix caches of workers apart from those of other callers; None where all share them
    identity  tells the key from an earlier or later one of its name; empty only where everybody may call
    since     Unix seconds in which the key was made; 0 where that is not known
    logged_until  Unix seconds until which its prompts and replies are logged
    bounds    those of its team
    tenant    the unit that owns what is stored, and takes turns with others if requests wait: the team, or the key of a
              caller without a team: that key alone, and no other one that has or had its name. It follows from the rest
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
    identity: str = ""
    since: float = 0.0
    logged_until: float = 0.0
    bounds: TeamBounds = field(default_factory=lambda: UNBOUND)
    tenant: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "tenant", tenant_of(self.key, self.team, self.identity))

    def __repr__(self) -> str:
        # A caller that knows the salt can find out what is cached.
        return f"Principal({self.key!r}, team={self.team!r})"

    @property
    def former_tenant(self) -> str | None:
        """The name by which earlier versions kept what belongs to a key without a team; None if there was none."""
        return f"key {self.key}" if self.team is None and self.identity and self.key != ANONYMOUS.key else None

    def owns(self, owner: str, since: float) -> bool:
        """Whether what `owner` has stored at `since`, in Unix seconds, is the caller's."""
        return owner == self.tenant or (owner == self.former_tenant and since >= self.since)

    def sealing(self) -> Sealing:
        """By what the texts of its tenant are sealed."""
        if self.secrets is None:
            return Sealing(self.tenant, b"")
        return Sealing(self.tenant, self.secrets.of(self.key), self.secrets.find, self.former_tenant)

    def may_use(self, model: str) -> bool:
        """model is the configured name, not an alias. Answer a forbidden one as if it did not exist."""
        if self.bounds.models is not None and model not in self.bounds.models:
            return False
        return self.models is None or model in self.models

    @property
    def usable(self) -> frozenset[str] | None:
        """The models that it may use; None is all."""
        if self.models is None or self.bounds.models is None:
            return self.bounds.models if self.models is None else self.models
        return self.models & self.bounds.models

    def may_speak(self, dialect: str) -> bool:
        return self.dialects is None or dialect in self.dialects


ANONYMOUS = Principal("anonymous")


class Absent(NamedTuple):
    """A caller that has left something to be done for it, as it was then.

    team, models  of a token, whose claims are not looked up again
    identity      None where an earlier version noted the caller
    owner         the tenant that has what was left
    since         Unix seconds in which it was
    """

    key: str
    team: str | None
    models: frozenset[str] | None
    identity: str | None
    owner: str
    since: float


class PendingAuth(Struct, frozen=True):
    """The caller that a request names. If there is a `prove`, call it with (method, raw path, raw query, body)
    before anything is done for the request. It raises GatewayError when the signature is wrong.

    lasting  the same headers mean the same caller until the keys change: no clock was read
    """

    principal: Principal
    prove: Callable[[str, bytes, bytes, bytes], None] | None = None
    lasting: bool = False
