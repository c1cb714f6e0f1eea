"""An identity provider of OpenID Connect with real RS256 keys. It asks nobody for a password: who comes by `login`, or
with a real browser, is whom the test says.

Sources: OpenID Connect Core 1.0, sections 3.1.2, 3.1.3 and 5.3; Discovery 1.0, section 4; RP-Initiated Logout 1.0,
section 2; RFC 7636, section 4.6.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.standins.serving import Answering, serving

CLIENT, SECRET = "console", "secret:of/the-client%+"


class Identity:
    """asked: paths, as they were asked for. answers: path -> (status, body), in place of its own. claims: added to each
    token, or taken away by None. person: the claims of who comes with a real browser. userinfo: what that endpoint has.
    key, kid, algorithm: by which tokens are signed; keys: those that it shows. described: what it says of itself.
    ended: the queries of logouts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.claims: dict[str, Any] = {}
        self.person: dict[str, Any] = {}
        self.key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = "one"
        self.algorithm = "RS256"
        self.keys = {"one": self.key}
        self.userinfo: dict[str, Any] = {}
        self.ended: list[dict[str, str]] = []
        self.described: dict[str, Any] = {
            "issuer": url,
            "authorization_endpoint": f"{url}/authorize?tenant=a",
            "token_endpoint": f"{url}/token",
            "jwks_uri": f"{url}/keys",
            "userinfo_endpoint": f"{url}/userinfo",
            "end_session_endpoint": f"{url}/logout?tenant=a",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
        self.held = threading.Event()
        self.held.set()
        self._codes: dict[str, dict[str, str]] = {}
        self._people: dict[str, dict[str, Any]] = {}

    def login(self, location: str, sub: str = "alice", **claims: Any) -> str:
        """The address to which the provider sends the browser back that came to `location`."""
        asked = {name: one[0] for name, one in parse_qs(urlsplit(location).query).items()}
        assert location.startswith(f"{self.url}/authorize?tenant=a&")
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = f"code-{len(self._codes)}"
        self._codes[code], self._people[code] = asked, {"sub": sub, **claims}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, str]]:
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None:
            return 400, {"error": "invalid_grant"}
        pair = f"{form.get('client_id')}:{form.get('client_secret')}"
        if authorization:
            pair = unquote_plus(b64decode(authorization.removeprefix("Basic ")).decode())
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if pair != f"{CLIENT}:{SECRET}" or challenge != asked["code_challenge"]:
            return 401, {"error": "invalid_client"}
        if form["redirect_uri"] != asked["redirect_uri"] or form["grant_type"] != "authorization_code":
            return 400, {"error": "invalid_request"}
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": asked["nonce"]}
        claims |= self._people[form["code"]] | self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        token = jwt.encode(claims, self.key, self.algorithm, {"kid": self.kid})
        return 200, {"access_token": f"for {claims.get('sub')}", "token_type": "Bearer", "id_token": token}

    def _known(self, authorization: str) -> tuple[int, dict[str, Any]]:
        kind, _, sub = authorization.partition(" for ")
        return (200, {"sub": sub, **self.userinfo}) if kind == "Bearer" else (401, {"error": "invalid_token"})

    def answer(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, bytes]:
        if path in self.answers:
            return self.answers[path]
        found: Any = {"error": "nothing is here"}
        status = 404
        if path == "/.well-known/openid-configuration":
            status, found = 200, self.described
        elif path == "/keys":
            shown = [
                {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in self.keys.items()
            ]
            status, found = 200, {"keys": shown}
        elif path == "/token":
            status, found = self._token(form, authorization)
        elif path == "/userinfo":
            status, found = self._known(authorization)
        return status, json.dumps(found).encode()


@contextmanager
def identity(tls: ssl.SSLContext | None = None) -> Iterator[Identity]:
    """Runs it on a free port."""

    class Answers(Answering):
        def do_GET(self) -> None:
            self._told({})

        def do_POST(self) -> None:
            self._told({name: one[0] for name, one in parse_qs(self.posted().decode()).items()})

        def _told(self, form: dict[str, str]) -> None:
            found.held.wait(30)
            path = urlsplit(self.path).path
            found.asked.append(path)
            if path == "/authorize":
                self.answer(302, location=found.login(found.url + self.path, **found.person))
                return
            if path == "/logout":
                asked = {name: one[0] for name, one in parse_qs(urlsplit(self.path).query).items()}
                found.ended.append(asked)
                self.answer(302, location=asked["post_logout_redirect_uri"])
                return
            status, body = found.answer(path, form, self.headers.get("authorization", ""))
            self.answer(status, body, **{"content-type": "application/json"})

    with serving(Answers, tls) as origin:
        found = Identity(origin)
        try:
            yield found
        finally:
            found.held.set()
