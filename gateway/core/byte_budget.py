"""Bounds that all callers share, with a part for each: bytes of bodies, web sockets, connections.

A bound that nobody owns can be taken by one caller from all others. So what is taken has an owner, and an owner that
holds something may hold no more than a share of what the others leave (dynamic thresholds, Choudhury and Hahne, 1998):
however much one caller wants, the next one finds room. An owner that holds nothing may take whatever fits: so a body
may be as large as bodies may be, also in a small room.
"""

from __future__ import annotations

import sys

from gateway.core.errors import GatewayError, Kind

SMALL = 1 << 16
"""Bytes. Bodies up to this size are not counted: nearly all are so small, and the bound on connections bounds them."""
UNOWNED = ""
"""The owner of what many callers send together. It has no share: the bound alone holds."""


class Shared:
    """A bound on what all callers hold together.

    limit     of all
    held      owner -> what it holds; nobody that holds nothing
    share     the part of what the others leave that one owner may hold, above 0 and at most 1: no bound but the limit
    reserved  how much of it is taken
    """

    __slots__ = ("held", "limit", "reserved", "share")

    def __init__(self, limit: int = sys.maxsize, share: float = 1.0) -> None:
        self.limit = limit
        self.share = share
        self.reserved = 0
        self.held: dict[str, int] = {}

    def take(self, size: int, owner: str) -> bool:
        """Takes `size` for `owner`; False, and takes nothing, if there is no room for it."""
        if not self.has_room(owner, size):
            return False
        self.change(size, owner)
        return True

    def release(self, size: int, owner: str) -> None:
        """Gives back `size` of what `owner` holds."""
        self.change(-size, owner)

    def has_room(self, owner: str, size: int = 1, instead_of: int = 0) -> bool:
        """Whether `owner` may take `size` now, in place of so much of what it holds."""
        held = self.held.get(owner, 0) - instead_of
        left = self.limit - self.reserved + instead_of
        return size <= left and (not held or not owner or held + size <= self.share * (left + held))

    def change(self, size: int, owner: str) -> None:
        """Counts `size` more to `owner`, or less if it is negative, whatever the bounds say. An owner that holds
        nothing is forgotten."""
        self.reserved += size
        held = self.held.get(owner, 0) + size
        if held > 0:
            self.held[owner] = held
        else:
            self.held.pop(owner, None)


class ByteBudget(Shared):
    """The bytes that large request bodies may take together; shared by all requests.

    The limit is one on bodies as they arrive. Copies of a body, such as the worker's request, are not counted and come
    on top.
    """

    __slots__ = ()


class Held:
    """The bytes of a budget that one holder has for an owner.

    owner  who they are counted to
    size   how many
    """

    __slots__ = ("_budget", "owner", "size")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self.owner = owner
        self.size = 0

    def resize(self, size: int) -> bool:
        """Holds `size` bytes from now on; False, and nothing has changed, if there is no room for more."""
        if size > self.size and not self._budget.has_room(self.owner, size, instead_of=self.size):
            return False
        self._budget.change(size - self.size, self.owner)
        self.size = size
        return True

    def require(self, size: int) -> None:
        """As `resize`. Raises GatewayError(OVERLOADED) if there is no room."""
        if not self.resize(size):
            message = "too many large requests are under way"
            raise GatewayError(Kind.OVERLOADED, message, code="no_room_for_body", retry_after=1.0)

    def pass_to(self, owner: str) -> None:
        """From now on the bytes are counted to another owner. Raises as `require`: then nothing is held."""
        size, _ = self.size, self.resize(0)
        self.owner = owner
        self.require(size)
