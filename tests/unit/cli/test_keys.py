"""Keys of the store from the command line, and by curl, at running `dragoman serve` processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from gateway.auth import new_key
from tests.support.commands import Serving, called
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.redis_server import Server

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def worker() -> Iterator[Stack]:
    """Only for its simulated worker."""
    with Stack() as stack:
        yield stack


class Fleet:
    """Two gateways on one Redis, started by `dragoman serve`."""

    def __init__(self, folder: Path, worker: Stack) -> None:
        self.folder = folder
        self.server = Server(folder, "--appendonly", "yes")
        self.server.start()
        secret, entry = new_key("root")
        (folder / "admins.yaml").write_text(entry)
        (folder / "admin.key").write_text(secret + "\n")
        self.secret = secret
        self.gateways = []
        for number in range(2):
            place = folder / str(number)
            place.mkdir()
            sections: dict[str, Any] = {
                "models": {"m": {"backend": "vllm", "upstream_model": "sim", "workers": [worker.sim.url]}},
                "keys_store": "redis",
                "admins_file": "../admins.yaml",
                "metrics": {"listen": f"127.0.0.1:{free_port()}"},
                "redis": {"addresses": [self.server.address], "timeout_s": 10},
                "request_policies": {"blue": {"match": {"team": ["blue"]}, "caps": {"max_tokens": 7}}},
            }
            self.gateways.append(Serving(place, sections))
        for one in self.gateways:
            one.listening()
            one.admin = one.lines[-1]["metrics"]

    def keys(self, *words: str, gateway: int = 0) -> subprocess.CompletedProcess[str]:
        return self._called("keys", *words, gateway=gateway)

    def teams(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._called("teams", *words)

    def _called(self, *words: str, gateway: int = 0) -> subprocess.CompletedProcess[str]:
        admin = self.gateways[gateway].admin
        return called(*words, "--gateway", admin, "--key-file", "admin.key", folder=self.folder)

    def status(self, key: str, gateway: int = 1) -> int:
        url, headers = self.gateways[gateway].url, {"authorization": f"Bearer {key}"}
        return httpx.post(url + "/v1/chat/completions", json=CHAT, headers=headers).status_code

    def close(self) -> None:
        for one in self.gateways:
            one.close()
        self.server.thaw_if_alive()
        self.server.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, worker: Stack) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), worker)
    yield fleet
    fleet.close()


class Busy(BaseHTTPRequestHandler):
    """An admin API whose store answers only the fourth time, when a second has gone by at least."""

    asked: ClassVar[list[float]] = []

    def do_GET(self) -> None:
        self.asked.append(time.monotonic())
        down = len(self.asked) < 4
        body = (
            b'{"error": {"message": "the store of keys cannot be reached now"}}'
            if down
            else b'{"teams": [], "next": null}'
        )
        self.send_response(503 if down else 200)
        self.send_header("retry-after", "1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_command_waits_for_a_store_that_cannot_be_reached_now(tmp_path: Path) -> None:
    """As long as its answers ask for: three seconds here."""
    (tmp_path / "admin.key").write_text("key")
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            found = called("teams", "list", "--gateway", url, "--key-file", "admin.key", folder=tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert (found.returncode, len(found.stdout.splitlines()), found.stderr) == (0, 1, "")
    assert len(Busy.asked) == 4
    assert all(later - sooner >= 0.9 for sooner, later in itertools.pairwise(Busy.asked))


def test_a_key_of_the_configuration_goes_into_a_new_file(tmp_path: Path) -> None:
    words = ("keys", "new", "--name", "me", "--key-file", "admin.key")
    made = called(*words, folder=tmp_path)
    secret = (tmp_path / "admin.key").read_text()
    assert (made.returncode, made.stderr) == (0, "")
    assert f"sha256:{sha256(secret.strip().encode()).hexdigest()}" in made.stdout
    assert (tmp_path / "admin.key").stat().st_mode & 0o777 == 0o600
    again = called(*words, folder=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "admin.key cannot be made: File exists" in again.stderr
    assert (tmp_path / "admin.key").read_text() == secret


def test_a_key_from_create_to_revoke(fleet: Fleet) -> None:
    made = fleet.keys("create", "app", "--team", "blue", "--model", "m", "--options", '{"limits": {"requests": 50}}')
    assert (made.returncode, made.stderr) == (0, "")
    key = made.stdout.strip()
    until(lambda: fleet.status(key) == 200)
    shown = json.loads(fleet.keys("show", "app").stdout)
    assert (shown["team"], shown["models"], shown["limits"]["requests"]) == ("blue", ["m"], 50)
    assert shown["created_by"] == "root"
    assert shown["id"] == key.split("_")[1]
    listed = fleet.keys("list", "--team", "blue", gateway=1).stdout.splitlines()
    assert listed[0].split() == ["name", "team", "id", "state", "where", "used", "changed", "by"]
    assert [line.split()[:4] for line in listed[1:]] == [["app", "blue", shown["id"], "valid"]]

    new = fleet.keys("rotate", "app", "--valid", "60").stdout.strip()
    until(lambda: fleet.status(new) == 200)
    assert fleet.status(key) == 200
    revoked = fleet.keys("revoke", "--yes", "app")
    assert (revoked.returncode, revoked.stderr) == (0, "app is revoked\n")
    until(lambda: fleet.status(new) == fleet.status(key) == 401)
    assert "revoked" in fleet.keys("list", "--revoked").stdout
    refused = fleet.keys("rotate", "app")
    assert (refused.returncode, refused.stderr) == (1, "dragoman: the key was revoked; create another one\n")


def test_the_same_by_curl(fleet: Fleet) -> None:
    def curl(*words: str) -> Any:
        found = subprocess.run(
            ["curl", "-sS", "-H", f"authorization: Bearer {fleet.secret}", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(found.stdout)

    base = fleet.gateways[1].admin + "/admin/v1"
    body = ["-H", "content-type: application/json", "-d"]
    made = curl(base + "/keys", *body, '{"name": "curled", "team": "red"}')
    until(lambda: fleet.status(made["key"], gateway=0) == 200)
    assert curl("-X", "PATCH", base + "/keys/curled", *body, '{"disabled": true}')["disabled"]
    until(lambda: fleet.status(made["key"], gateway=0) == 401)
    assert [key["name"] for key in curl(base + "/keys?team=red")["keys"]] == ["curled"]
    assert curl("-X", "POST", base + "/keys/curled/revoke")["revoked"]
    assert [line["what"] for line in curl(base + "/audit?limit=3")["changes"]] == ["revoke", "update", "create"]
    for one in fleet.gateways:
        assert one.process.poll() is None


@pytest.mark.long
def test_keys_outlive_a_restart_of_redis_and_of_gateways(fleet: Fleet) -> None:
    lasting, revoked = (fleet.keys("create", name).stdout.strip() for name in ("lasting", "late"))
    until(lambda: fleet.status(lasting) == fleet.status(revoked) == 200)
    fleet.keys("revoke", "--yes", "late")
    time.sleep(1.5)  # appendfsync everysec: a kill loses a second at most
    fleet.server.kill()
    until(lambda: fleet.gateways[1].event("the store of keys is away") is not None)
    assert [fleet.status(key) for key in (lasting, revoked, "unknown")] == [200, 401, 503]
    away = fleet.keys("create", "meanwhile")
    assert (away.returncode, away.stdout) == (1, "")
    assert away.stderr == "dragoman: the store of keys cannot be reached now\n"

    one = fleet.gateways[1]
    place = fleet.folder / "late"
    place.mkdir()
    again = Serving(place, {**one.sections, "metrics": {}, "admins_file": None})  # it starts without Redis
    try:
        again.listening()
        headers = {"authorization": f"Bearer {lasting}"}

        def there() -> int:
            return httpx.post(again.url + "/v1/chat/completions", json=CHAT, headers=headers).status_code

        assert there() == 503
        fleet.server.start()
        until(lambda: there() == 200)
        until(lambda: fleet.status(revoked) == 401)
        assert fleet.status(lasting) == 200
    finally:
        again.close()


def test_an_export_fills_an_empty_store(fleet: Fleet, tmp_path: Path) -> None:
    """Teams first: without its entry the keys of a team could do more than they may."""
    key = fleet.keys("create", "exported", "--team", "bound").stdout.strip()
    words = ("--options", '{"models": [], "description": "none"}', "--limit", "team-requests=9")
    assert fleet.teams("set", "bound", *words).returncode == 0
    exported = fleet.keys("export")
    assert exported.returncode == 0
    assert key not in exported.stdout
    found = [json.loads(line) for line in exported.stdout.splitlines()]
    teams = [one for one in found if one.get("kind") == "team"]
    assert found[: len(teams)] == teams
    bound = {"models": [], "limits": {"team-requests": 9}, "description": "none"}
    assert {"kind": "team", "name": "bound", **bound} in teams
    (fleet.folder / "keys.jsonl").write_text(exported.stdout)
    fleet.server.command("FLUSHALL")
    taken = fleet.keys("import", "--yes", "keys.jsonl", gateway=1)
    assert (taken.returncode, taken.stderr.splitlines()[-1]) == (0, f"{len(found) - len(teams)} keys taken in")
    assert fleet.server.command("HEXISTS", "{dragoman-keys}", "exported")
    until(lambda: fleet.status(key) == 404)
    again = fleet.keys("import", "--yes", "keys.jsonl")
    assert (again.returncode, "the team bound has an entry, which stays" in again.stderr) == (0, True)
    assert fleet.status(key, gateway=0) == 404
    (fleet.folder / "wrong.jsonl").write_text(
        '{"kind": "team", "name": "wrong", "models": ["gone"]}\n' + exported.stdout
    )
    wrong = fleet.keys("import", "--yes", "wrong.jsonl")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("dragoman: line 1: models.0: ")
    assert wrong.stderr.endswith("; no key was taken in\n")


def test_other_commands_know_keys_of_the_store(fleet: Fleet) -> None:
    fleet.keys("create", "limited", "--team", "blue", "--options", '{"limits": {"requests": 7}}')
    file = str(fleet.gateways[0].file)
    shown = called("limits", "show", "--config", file, "--key", "limited")
    assert shown.stdout.splitlines()[1].split()[:5] == ["requests", "key", "limited", "0", "7"]
    fleet.keys("revoke", "--yes", "limited")
    for name in ("limited", "nobody"):
        told = called("limits", "show", "--config", file, "--key", name)
        assert (told.returncode, told.stderr) == (2, f"dragoman: there is no key {name}\n")


def test_a_key_with_a_secret_of_ones_own(fleet: Fleet) -> None:
    own = "dgm_mine_" + "x" * 40
    options = json.dumps({"hash": f"sha256:{sha256(own.encode()).hexdigest()}", "id": "mine", "team": "blue"})
    made = fleet.keys("create", "mine", "--options", options)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "mine is made, with the secret of the hash\n")
    assert json.loads(fleet.keys("show", "mine").stdout)["id"] == "mine"
    until(lambda: fleet.status(own) == 200)


WRONG: dict[str, Any] = {
    **dict.fromkeys(("anything", "rotating", "created_by", "version", "seal", "revoked"), "x"),
    "old": [],
    "created": 1.0,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--options", '{"id": "x"}'), "id comes with the hash of a secret of your own"),
        (("--options", '{"name": "y"}'), "name is given twice: by --options and beside it"),
        (("--team", "a", "--options", '{"team": "b"}'), "team is given twice: by --options and beside it"),
        (("--model", "m", "--options", '{"models": ["m"]}'), "models is given twice: by --options and beside it"),
        *((("--options", json.dumps({name: value})), f"{name}: ") for name, value in WRONG.items()),
        (("--options", '{"limits": {"anything": 1}}'), "limits.anything: "),
    ],
)
def test_an_option_is_obeyed_or_refused(fleet: Fleet, words: tuple[str, ...], message: str) -> None:
    for action in ("create", "update"):
        if action == "update" and "comes with" in message:
            message = "id: a secret changes by rotate"
        name = "refused" if action == "create" else "own-options"
        if action == "update":
            fleet.keys("create", name)
        found = fleet.keys(action, name, *words)
        assert (found.returncode > 0, found.stdout) == (True, ""), found.stdout
        assert message in found.stderr


def test_mistakes_are_named(fleet: Fleet, tmp_path: Path) -> None:
    for words, message in (
        (("create", "x", "--options", "[]"), "--options must be a JSON object"),
        (("create", "x", "--model", "nothing"), "models.0: is not a model"),
        (("show", "nobody"), "there is no such key in the store"),
    ):
        told = fleet.keys(*words)
        assert (told.returncode > 0, told.stdout) == (True, "")
        assert message in told.stderr
    (tmp_path / "wrong.key").write_text("wrong")
    wrong = called("keys", "list", "--gateway", fleet.gateways[0].admin, "--key-file", str(tmp_path / "wrong.key"))
    assert wrong.stderr == "dragoman: the key is not that of an admin\n"
    port = fleet.gateways[0].url
    other = called("keys", "list", "--gateway", port, "--key-file", str(fleet.folder / "admin.key"))
    assert other.returncode == 1
    clients = f"dragoman: {port} is where clients connect (listen.port); give --gateway the address of metrics.listen"
    assert clients in other.stderr
    there = str(fleet.gateways[0].file)
    named = called("keys", "list", "--gateway", port, "--key-file", str(fleet.folder / "admin.key"), "--config", there)
    assert clients in named.stderr  # it listens where the system put it, and not at listen.port
    with Stack(config={"metrics": {"listen": "127.0.0.1:9090"}}) as alone:
        without = called("keys", "list", "--gateway", alone.admin_url, "--key-file", str(fleet.folder / "admin.key"))
        assert without.stderr == "dragoman: the gateway has no admins (docs/keys.md)\n"
    nobody = called("keys", "list", "--gateway", "http://127.0.0.1:9", "--key-file", str(fleet.folder / "admin.key"))
    assert nobody.stderr.startswith(
        "dragoman: no answer from http://127.0.0.1:9/admin/v1/: ConnectError; does a gateway"
    )


def test_a_key_is_changed_from_the_command_line(fleet: Fleet) -> None:
    secret = fleet.keys("create", "changing", "--team", "blue", "--model", "m").stdout.strip()
    until(lambda: fleet.status(secret) == 200)
    found = fleet.keys("update", "changing", "--options", '{"disabled": true, "limits": {"requests": 5}}')
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert (shown["disabled"], shown["limits"]["requests"], shown["team"], shown["models"]) == (True, 5, "blue", ["m"])
    until(lambda: fleet.status(secret) == 401)
    shown = json.loads(fleet.keys("update", "changing", "--team", "red", "--options", '{"disabled": null}').stdout)
    assert (shown["disabled"], shown["team"]) == (False, "red")
    until(lambda: fleet.status(secret) == 200)
    for words, why in (
        ((), "nothing to change"),
        (("--model", "none"), "is not a model"),
        (("--options", "[]"), "JSON object"),
    ):
        refused = fleet.keys("update", "changing", *words)
        assert refused.returncode != 0
        assert why in refused.stderr


def test_commands_that_show_a_request_know_keys_of_the_store(fleet: Fleet) -> None:
    """By their teams, for the policies of these. Other files and secrets of the configuration are not read."""
    assert fleet.keys("create", "shown", "--team", "blue").returncode == 0
    body = fleet.folder / "body.json"
    body.write_text(json.dumps({**CHAT, "max_tokens": 90}))
    file, asked = str(fleet.folder / "0" / "gateway.yaml"), ("--key", "shown", "--body", str(body))
    explained = called("explain", "--config", file, *asked)
    assert "changed: max_tokens=7\n" in explained.stdout, explained.stderr
    crossing = ("--from", "openai", "--to", "vllm", "--model", "m", "--policies", file)
    translated = called("translate", *crossing, *asked)
    assert translated.stderr == "changed: max_tokens=7\n"
    assert '"max_tokens": 7' in translated.stdout


def test_keys_of_litellm_are_taken_into_the_store(fleet: Fleet) -> None:
    price = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    worker = {"model": "hosted_vllm/m", "api_base": "http://w:1/v1", **price}
    moved = {"model_list": [{"model_name": "m", "litellm_params": worker}], "router_settings": {"redis_host": "r"}}
    secret = "sk-of-LiteLLM-0123456789"
    row = {"token": sha256(secret.encode()).hexdigest(), "key_alias": "moved", "rpm_limit": 1, "expires": "2099-01-01"}
    row |= {"max_budget": 5, "budget_duration": "30d", "team_id": "t"}
    team = {"team_id": "t", "team_alias": "Moved Team", "models": ["n"]}
    for name, value in (("config.yaml", moved), ("rows.json", [row, team])):
        (fleet.folder / name).write_text(json.dumps(value))
    words = ("import", "litellm", "config.yaml", "--keys", "rows.json", "--stored-keys", "moved.jsonl")
    assert called(*words, folder=fleet.folder).returncode == 1, "the model n is left out"
    assert fleet.keys("import", "moved.jsonl").returncode == 0
    until(lambda: fleet.status(secret) == 404)
    later = fleet.keys("create", "later", "--team", "Moved-Team").stdout.strip()
    until(lambda: fleet.status(later) == 404)
    assert fleet.teams("set", "Moved-Team", "--model", "m").returncode == 0
    until(lambda: fleet.status(later) == 200)
    assert fleet.status(secret) == 200
    assert fleet.status(secret) == 429
    new = fleet.keys("rotate", "moved").stdout.strip()
    until(lambda: fleet.status(new) == 429)
