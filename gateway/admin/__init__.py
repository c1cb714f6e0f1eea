"""Keys that are made, changed and revoked while gateways run.

store.py    what Redis holds of them: the keys, and the record of changes that is both audit and news
mirror.py   all of it in this process's memory, so that no request waits for Redis; survives what Redis loses
durable.py  whether Redis would keep the keys
"""

from gateway.admin.mirror import InForce, KeyMirror
from gateway.admin.store import KeyStore, StoreDown

__all__ = ["InForce", "KeyMirror", "KeyStore", "StoreDown"]
