"""Callers who look after the gateway: admins by a key or token of theirs, and people who have logged in."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind


class Admin(Struct, frozen=True):
    """The rule of what such a caller may do, whatever it has shown.

    name     as in the audit record
    teams    those whose keys, requests, spending and budgets it may see and change; None is all, and the keys without
             a team
    changes  False for a viewer, who only reads
    """

    name: str
    teams: frozenset[str] | None = None
    changes: bool = True

    def may(self, team: str | None) -> bool:
        return self.teams is None or team in self.teams

    @property
    def all(self) -> bool:
        """Whether it may do what concerns all teams at once."""
        return self.teams is None and self.changes

    def check(self, method: str) -> None:
        """Raises GatewayError(FORBIDDEN) if a viewer calls by a method that changes something."""
        if not self.changes and method not in ("GET", "HEAD"):
            raise GatewayError(Kind.FORBIDDEN, "a viewer may change nothing", code="role")
