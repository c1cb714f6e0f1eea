"""Keys that are made, changed and revoked while gateways run.

store.py    what Redis holds of them: the keys, and the record of changes that is both audit and news
mirror.py   all of it in this process's memory, so that no request waits for Redis; survives what Redis loses
durable.py  whether Redis would keep the keys
callers.py  admins and their roles
changes.py  the changes that they ask for
api.py      the admin API; openapi.py: its operations, and their description
"""

from gateway.admin.api import AdminApi
from gateway.admin.callers import Admins
from gateway.admin.changes import KeyChanges, options_of
from gateway.admin.mirror import InForce, KeyMirror
from gateway.admin.store import Event, KeyStore, StoreDown
