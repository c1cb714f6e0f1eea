"""A service that lends a role's pair of keys to whom shows its token: STS, and the agent of EKS' Pod Identity.

Sources: AssumeRoleWithWebIdentity of AWS STS' API reference; "Container credential provider" of AWS' SDK reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.standins.serving import Answering, server_tls, serving

UNTIL = "2100-01-01T00:00:00Z"
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>{token}</SessionToken>
<SecretAccessKey>{secret}</SecretAccessKey><Expiration>{until}</Expiration><AccessKeyId>{id}</AccessKeyId>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Lender:
    """asked: the tokens that were shown, with the role of a web identity."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str]] = []


@contextmanager
def lender(pair: tuple[str, str], token: str, tls: Path | None = None) -> Iterator[Lender]:
    """Runs it on a free port; tls: the folder of `cert.pem` and `key.pem`."""

    class Answers(Answering):
        def do_POST(self) -> None:
            query = f"{urlsplit(self.path).query}&{self.posted().decode()}"
            form = {name: one[0] for name, one in parse_qs(query).items()}
            self._lend(form.get("WebIdentityToken", ""), form.get("RoleArn", ""))

        def do_GET(self) -> None:
            self._lend(self.headers.get("authorization", ""), "")

        def _lend(self, shown: str, role: str) -> None:
            found.asked.append((shown, role))
            lent = {"id": pair[0], "secret": pair[1], "token": "lent", "until": UNTIL}
            names = {"AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "token", "Expiration": "until"}
            text = STS.format(**lent) if role else json.dumps({name: lent[own] for name, own in names.items()})
            self.answer(200 if shown == token else 403, text.encode())

    context = server_tls((tls / "cert.pem", tls / "key.pem")) if tls is not None else None
    with serving(Answers, context) as origin:
        found = Lender(origin)
        yield found
