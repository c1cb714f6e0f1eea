"""A service that lends a role's pair of keys to whom shows its token: STS, and the agent of EKS' Pod Identity.

Sources: AssumeRoleWithWebIdentity of AWS STS' API reference; "Container credential provider" of AWS' SDK reference.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            form = {name: one[0] for name, one in parse_qs(f"{urlsplit(self.path).query}&{body}").items()}
            self._lend(form.get("WebIdentityToken", ""), form.get("RoleArn", ""))

        def do_GET(self) -> None:
            self._lend(self.headers.get("authorization", ""), "")

        def _lend(self, shown: str, role: str) -> None:
            found.asked.append((shown, role))
            lent = {"id": pair[0], "secret": pair[1], "token": "lent", "until": UNTIL}
            names = {"AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "token", "Expiration": "until"}
            text = STS.format(**lent) if role else json.dumps({name: lent[own] for name, own in names.items()})
            self.send_response(200 if shown == token else 403)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Lender(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
