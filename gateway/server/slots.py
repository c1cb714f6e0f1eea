"""The slots of client connections: how many there are, and how many of them one address may hold."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from gateway.config import Listen
from gateway.core.addresses import network_of
from gateway.core.byte_budget import UNOWNED, Shared


class Slots(Shared):
    """The client connections of one server. A trusted proxy brings those of many clients: it may hold all."""

    __slots__ = ("_listen", "_trusted")

    def __init__(self, listen: Listen) -> None:
        super().__init__()
        self._use(listen)

    def _use(self, listen: Listen) -> None:
        self._listen = listen
        self._trusted = [ip_network(one) for one in listen.trusted_proxies]
        self.limit, self.share = listen.max_connections, listen.connections_share

    def enter(self, listen: Listen, host: str) -> str | None:
        """Takes a slot for a connection from `host`, under these settings. Returns who it is counted to, for
        `release`; None if there is no slot."""
        if listen is not self._listen:  # since a reload
            self._use(listen)
        owner = UNOWNED if self._trusted and self._is_trusted(host) else network_of(host)
        return owner if self.take(1, owner) else None

    def _is_trusted(self, host: str) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        known = getattr(address, "ipv4_mapped", None) or address
        return any(known in network for network in self._trusted)
