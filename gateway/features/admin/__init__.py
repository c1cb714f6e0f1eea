"""Keys are made, changed and revoked while gateways run; `gateway.auth` has what is stored of them.

callers.py  admins and their roles
changes.py  the changes that they ask for
api.py      the admin API; openapi.py: its operations, and their description
"""
