"""The one place that connects to Redis or Valkey: where the server is, and how to talk to it.

settings    how to log in
client      a redis-py client, for rare calls: accounting, the workers' registry, finding the primary of a slot
connection  a connection of our own, for calls that a request waits for
"""

from gateway.redis.client import FAILURES, connect
from gateway.redis.connection import Connection, Refused, Servers
from gateway.redis.settings import split_address
