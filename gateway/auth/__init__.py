"""From the head of a request to its caller, a `Principal`. No other room knows which headers carry keys.

admin.py       what admins may see and change

Keys that are made, changed and revoked while gateways run:

stored.py      one of them, and a team
key_store.py   what Redis holds of them: keys, teams, and the record of changes that is both audit and news
key_mirror.py  all of it in this process's memory, so that no request waits for Redis; survives what Redis loses
last_used.py   when each was used last
durable.py     whether Redis would keep the keys
"""

from gateway.auth.admin import Admin
from gateway.auth.headers import find_key, from_path, from_query, refused
from gateway.auth.jwt import JwtVerifier, read_keys
from gateway.auth.keyring import Keyring
from gateway.auth.keys import new_key, new_secret
from gateway.auth.masking import KnownKeys
from gateway.auth.principal import ANONYMOUS, Absent, PendingAuth, Principal
from gateway.auth.stored import (
    MOST_OLD,
    OPTIONS,
    TEAM_OPTIONS,
    Moment,
    OldSecret,
    OwnLimits,
    Stored,
    StoredKey,
    StoredTeam,
    options_of,
)
from gateway.auth.table import KeyTable, digest_of
