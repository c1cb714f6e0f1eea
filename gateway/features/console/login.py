"""Login to the console by an identity provider: the way there and back, the session behind it, and its end.

A gateway keeps nothing of it. The begin of a login and the session at its end are cookies that are sealed
(`wire.sealed`), so any gateway with the same `session_secret` takes them, and nobody else can make or read one.

The way back is a request from the provider's page. It needs the cookie of the browser that has begun the login, with
its `state`; the token needs the `nonce` of that cookie, and the code its PKCE verifier. Each login makes a new session,
whatever cookie came. Sessions come with a cookie that browsers send by themselves, so what changes something needs the
header `guard.CHANGE`, too, which a page of another origin cannot send, beside what `guard` asks of every request.

A logout ends the session at the provider, too, if that has an address for it. The ID token, by which the provider knows
the session, waits for it in a sealed cookie that only the path of the logout gets.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Struct

from gateway.auth import Admin
from gateway.auth.jwt import claim_of, named, values
from gateway.auth.sealing import PROCESS_SECRET
from gateway.config import ConsoleOidc
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.core.sealing import Sealing
from gateway.features.console.guard import Denied
from gateway.features.console.provider import Provider, accepted
from gateway.wire.sealed import Seal

_SESSION, _BEGUN, _HINT = "dragoman_console", "dragoman_login", "dragoman_id_token"
_LONGEST_S = 600
"""A login may take so long."""
_MOST_COOKIE, _MOST_COOKIES = 3800, 8
"""Bytes of a cookie that every browser keeps, and cookies of one name that are looked at."""
_MOST_HINT = 2600
"""Bytes of the cookie with an ID token: with it the head of a reply fits 4 KiB, the least that proxies take."""
_MOST_TEAMS, _MOST_QUERY = 100, 8192
_HERE_ALONE = "logged-out?here"
_AGAIN = "this login was not begun in this browser, was used before, or took too long: log in again"
_encode = msgspec.json.Encoder().encode


class _Begun(Struct, array_like=True):
    """A login that is under way. view: shown behind it; until: Unix seconds."""

    state: str
    nonce: str
    verifier: str
    view: str
    until: int


class _Session(Struct, array_like=True):
    """Somebody who has logged in. held: the values of the roles' claim that the configuration named then."""

    name: str
    held: tuple[str, ...]
    teams: tuple[str, ...]
    until: int


class _Hint(Struct, array_like=True):
    """The ID token of a login, for the provider that ends its session."""

    token: str
    until: int


_T = TypeVar("_T", _Begun, _Session, _Hint)


class Led(Struct):
    """The next address of a browser, with the cookies that it gets."""

    to: str
    cookies: Headers


class Login:
    """Logs people in by OpenID Connect, and keeps their sessions.

    clock: Unix seconds. views: those of the page, the first by default."""

    def __init__(
        self,
        options: ConsoleOidc,
        provider: Provider,
        views: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._provider = provider
        self._views = views
        self._clock = clock
        self._back = f"{options.url}/console/callback"
        secure = "; Secure" if options.url.startswith("https://") else ""
        self._path, self._attributes = f"{urlsplit(options.url).path}/console", f"; HttpOnly; SameSite=Lax{secure}"
        secret = options.session_secret
        sealing = Sealing(
            f"console {options.issuer} {options.client_id}", PROCESS_SECRET if secret is None else secret.encode()
        )
        uses = (b"console session", b"console login", b"console logout")
        self._sessions, self._logins, self._hints = (Seal(lambda: sealing, use) for use in uses)

    async def begin(self, query: str) -> Led:
        """To the provider. query: `next`, a view. Raises Denied."""
        described = await self._provider.described()
        asked = _parsed(query).get("next", "")
        view = asked if asked in self._views else self._views[0]  # nowhere else, whatever a link says
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = _Begun(state, nonce, verifier, view, int(self._clock()) + _LONGEST_S)
        question = {
            "response_type": "code",
            "client_id": self._options.client_id,
            "redirect_uri": self._back,
            "scope": " ".join(self._options.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        cookie = self._cookie(_BEGUN, self._logins.close(_encode(begun).decode()), _LONGEST_S)
        return Led(_with(described.authorization_endpoint, question), [cookie])

    async def finish(self, query: str, headers: Headers) -> tuple[Admin, Led]:
        """The person who has logged in, and the view to show. Raises Denied."""
        asked, begun = _parsed(query), self._begun(headers)
        if begun is None or not compare_digest(asked.get("state", "").encode(), begun.state.encode()):
            raise Denied(400, _AGAIN)
        if asked.get("iss", self._options.issuer) != self._options.issuer:  # RFC 9207
            raise Denied(400, "the answer is from another identity provider than console.oidc.issuer")
        if "error" in asked:
            raise _refused(asked["error"])
        if not asked.get("code"):
            raise Denied(400, "the identity provider sent no code")
        claims, token = await self._provider.login(
            asked["code"], begun.verifier, self._back, lambda own: self._missing(own, begun.nonce)
        )
        with accepted():
            session = self._session(claims)
        admin = self._admin(session)
        if admin is None:
            raise Denied(403, f"{session.name} has logged in, but has no role here (console.oidc.roles)")
        sealed = self._sessions.close(_encode(session).decode())
        if len(sealed) > _MOST_COOKIE:
            raise Denied(403, "the token names too many or too long teams for a session")
        cookie = self._cookie(_SESSION, sealed, int(self._options.session_s))
        hint = self._hints.close(_encode(_Hint(token, session.until)).decode())
        hint_cookie = self._hint(hint, int(self._options.session_s)) if len(hint) <= _MOST_HINT else self._hint("", 0)
        return admin, Led(begun.view, [cookie, self._cookie(_BEGUN, "", 0), hint_cookie])

    async def end(self, headers: Headers) -> Led:
        """To the provider, which ends its session, or to a page that says that it may go on."""
        endpoint = None
        with contextlib.suppress(Denied):  # whatever the provider does, the session here ends
            endpoint = (await self._provider.described()).end_session_endpoint
        hint = next(self._opened(self._hints, headers, _HINT, _Hint), None)
        who = {"client_id": self._options.client_id} if hint is None else {"id_token_hint": hint.token}
        after = {"post_logout_redirect_uri": f"{self._options.url}/console/logged-out"}
        return Led(
            _HERE_ALONE if endpoint is None else _with(endpoint, who | after),
            [self._cookie(_SESSION, "", 0), self._hint("", 0)],
        )

    def _begun(self, headers: Headers) -> _Begun | None:
        return next(self._opened(self._logins, headers, _BEGUN, _Begun), None)

    def _missing(self, claims: Mapping[str, Any], nonce: str) -> list[str]:
        """The claims that the ID token of this login lacks. Raises GatewayError."""
        options, roles = self._options, self._options.roles
        if not compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise GatewayError(Kind.UNAUTHENTICATED, "it was made for another login")
        if claims.get("azp", options.client_id) != options.client_id:
            raise GatewayError(Kind.UNAUTHENTICATED, "it was made for another client")
        elsewhere = claims.get("_claim_names")  # OpenID Connect Core, section 5.6.2; Entra ID: above 200 groups
        if isinstance(elsewhere, dict) and roles.claim in elsewhere and roles.claim not in claims:
            wrong = f"the identity provider leaves the claim '{roles.claim}' out, as it is too long: let it list less"
            raise GatewayError(Kind.FORBIDDEN, wrong)
        needed = [roles.claim, options.name_claim]
        if roles.team_claim is not None and {*roles.lead} & values(claims, roles.claim, "roles"):
            needed.append(roles.team_claim)
        if all(claim_of(claims, name) is not None for name in needed):
            return []
        every = (roles.claim, options.name_claim, roles.team_claim)
        return [name for name in every if name is not None and claim_of(claims, name) is None]

    def _session(self, claims: Mapping[str, Any]) -> _Session:
        """Raises GatewayError."""
        options, roles = self._options, self._options.roles
        if "email" in (options.name_claim, roles.claim) and claims.get("email_verified") in (False, "false"):
            raise GatewayError(Kind.FORBIDDEN, "the identity provider has not verified this email address")
        found = claim_of(claims, options.name_claim)
        name = named(options.name_claim, "" if found is None else found)
        known = {*roles.admin, *roles.lead, *roles.viewer}
        held = known & values(claims, roles.claim, "roles")
        teams: list[str] = []
        if held & {*roles.lead} and roles.team_claim is not None:
            given = claim_of(claims, roles.team_claim)
            given = [] if given is None else given
            teams = [named(roles.team_claim, one) for one in (given if isinstance(given, list) else [given])]
            if len(teams) > _MOST_TEAMS:
                raise GatewayError(Kind.FORBIDDEN, f"the token names more than {_MOST_TEAMS} teams")
        return _Session(f"oidc:{name}", (*sorted(held),), (*teams,), int(self._clock() + options.session_s))

    def _admin(self, session: _Session) -> Admin | None:
        """The roles are those of the configuration now, and not of that when the session began."""
        roles, held = self._options.roles, {*session.held}
        if held & {*roles.admin}:
            return Admin(session.name)
        if held & {*roles.lead} and session.teams:
            return Admin(session.name, frozenset(session.teams))
        return Admin(session.name, changes=False) if held & {*roles.viewer} else None

    def caller(self, headers: Headers) -> Admin | None:
        """The person whose session's cookie is in `headers`; None without one that holds."""
        session = next(self._opened(self._sessions, headers, _SESSION, _Session), None)
        return None if session is None else self._admin(session)

    def _opened(self, seal: Seal, headers: Headers, name: str, kind: type[_T]) -> Iterator[_T]:
        """The cookies called `name` that hold, opened."""
        for sealed in list(_cookies(headers, name))[:_MOST_COOKIES]:
            text = seal.open(sealed)
            if text is None:
                continue
            try:
                found = msgspec.json.decode(text, type=kind)
            except msgspec.MsgspecError:  # of another version
                continue
            if self._clock() < found.until:
                yield found

    def _cookie(self, name: str, text: str, age_s: int, below: str = "") -> tuple[bytes, bytes]:
        return b"set-cookie", f"{name}={text}; Path={self._path}{below}{self._attributes}; Max-Age={age_s}".encode()

    def _hint(self, text: str, age_s: int) -> tuple[bytes, bytes]:
        return self._cookie(_HINT, text, age_s, "/logout")


def _with(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"


def _cookies(headers: Headers, name: str) -> Iterator[str]:
    for one, value in headers:
        if one == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                own, _, text = pair.strip().partition("=")
                if own == name:
                    yield text


def _parsed(query: str) -> Mapping[str, str]:
    """Raises Denied."""
    try:
        if len(query) > _MOST_QUERY:
            raise ValueError
        return dict(parse_qsl(query, max_num_fields=20))
    except ValueError:
        raise Denied(400, "the query is too long") from None


def _refused(error: str) -> Denied:
    """The answer to a provider that sends an error instead of a code; RFC 6749, section 4.1.2.1. Anybody may write such
    a link, so only known words are repeated."""
    if error in ("server_error", "temporarily_unavailable"):
        return Denied(503, f"the identity provider failed: {error}")
    known = {"access_denied", "invalid_request", "invalid_scope", "unauthorized_client", "unsupported_response_type"}
    known |= {"login_required", "consent_required", "interaction_required", "account_selection_required"}
    return Denied(403, f"the identity provider refused the login: {error if error in known else 'unknown reason'}")
