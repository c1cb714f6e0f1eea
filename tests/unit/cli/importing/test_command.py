"""`dragoman import litellm` as a command: its files, what it refuses, and the sample installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.auth import new_key
from tests.support import litellm
from tests.support.commands import called
from tests.support.harness import Stack
from tests.unit.cli.importing.imports import deployment, imported, row

TEAMS: dict[str, Any] = {
    "Team-Blue": {"limits": {"team-tokens": 1_000_000}, "budgets": {"team-budget": "500"}},
    "red": {"models": ["llama", "gpt-4o", "gpt-4o@api.openai.com"]},
}
"""Those of the sample installation."""
VARIABLES = dict.fromkeys(litellm.ENVIRONMENT, "a-secret-of-the-environment")


def test_the_sample_installation_passes_check_and_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(litellm.config(), sort_keys=False))
    (tmp_path / "keys.json").write_text(json.dumps(litellm.rows()))
    words = ("import", "litellm", "config.yaml", "--keys", "keys.json", "--out", "gateway.yaml")
    made = called(*words, folder=tmp_path)
    assert (made.returncode, made.stdout) == (1, "")
    assert "8 models, 40 keys and 2 teams: " in made.stderr.splitlines()[-1]
    text = (tmp_path / "gateway.yaml").read_text()
    assert litellm.MARK not in text + made.stderr
    for wanted in ("master_key", "database_url", "success_callback.langfuse", "claude", "x-key", "LANGFUSE_SECRET_KEY"):
        assert any(wanted in line for line in text.splitlines() if line.lstrip().startswith("#")), wanted
    for line in made.stderr.splitlines():
        if " to the file " in line:
            (tmp_path / line.partition(" to the file ")[2].partition(",")[0]).write_text("a-secret-of-a-file")
    checked = called("check", "gateway.yaml", folder=tmp_path, **VARIABLES)
    assert (checked.returncode, checked.stdout[:35]) == (0, "gateway.yaml: 8 models, 40 keys, 13"), checked.stderr
    values = yaml.safe_load(text)
    assert (values["compat"], values["listen"]) == ("litellm", {"port": 4000, "host": "0.0.0.0"})
    assert values["spend"] == {"currency": "USD", "daily": True}
    assert [budget["per"] for budget in values["budgets"]] == ["week"]
    assert values["teams"] == TEAMS
    assert values["models"]["qwen"]["workers"] == ["http://gpu-2:8000", "http://gpu-3:8000"]
    assert values["models"]["gpt-4o"]["split"] == [{"model": "gpt-4o@api.openai.com", "share": 0.25}]
    assert values["models"]["gpt-4o"]["fallback"] == ["gpt-4o@api.openai.com", "qwen"]
    assert values["reply_cache"] == {"store": "redis"}
    assert values["request_policies"]["llama"]["defaults"] == {"temperature": 0.2, "max_tokens": 64}
    again = called(*words, folder=tmp_path)
    assert (again.returncode, again.stderr) == (2, "dragoman: gateway.yaml cannot be made: File exists\n")


def test_keys_may_go_into_the_store(tmp_path: Path) -> None:
    """gateway.yaml has none of them then, and passes with an admin's key; teams are among its lines."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(litellm.config(), sort_keys=False))
    rows = litellm.rows()
    rows["teams"].append({"team_id": "later", "rpm_limit": 3})  # a team whose keys are still to be made
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = ("import", "litellm", "config.yaml", "--keys", "rows.json", "--stored-keys", "keys.jsonl")
    made = called(*words, "--out", "gateway.yaml", folder=tmp_path)
    assert made.returncode == 1
    assert "8 models, 40 keys and 3 teams: " in made.stderr.splitlines()[-1]
    assert "keys import --key-file admin.key keys.jsonl" in made.stderr
    values = yaml.safe_load((tmp_path / "gateway.yaml").read_text())
    assert values["keys_store"] == "redis"
    assert values.keys().isdisjoint({"keys", "teams"})
    assert [budget["match"] for budget in values["budgets"]] == [{"key": ["app-3"]}]
    lines = [json.loads(line) for line in (tmp_path / "keys.jsonl").read_text().splitlines()]
    teams, keys = lines[:3], lines[3:]
    own = TEAMS | {"later": {"limits": {"team-requests": 3}}}
    assert teams == [{"kind": "team", "name": name, **team} for name, team in own.items()]
    assert len(keys) == 40
    assert {one["name"] for one in keys if one.get("disabled")} == {"app-7"}
    assert litellm.MARK not in (tmp_path / "keys.jsonl").read_text()
    for line in made.stderr.splitlines():
        if " to the file " in line:
            (tmp_path / line.partition(" to the file ")[2].partition(",")[0]).write_text("a-secret-of-a-file")
    (tmp_path / "admins.yaml").write_text(new_key("root")[1])
    checked = called("check", "gateway.yaml", folder=tmp_path, **VARIABLES)
    assert (checked.returncode, checked.stdout[:35]) == (0, "gateway.yaml: 8 models, 0 keys, 13 "), checked.stderr
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    without = called(*words, folder=tmp_path)
    assert (without.returncode, "names none" in without.stderr) == (2, True)


def test_without_keys_other_machines_are_not_served() -> None:
    values, _ = imported({"model_list": [deployment(input_cost_per_token=1e-6)]})
    assert values["listen"] == {"port": 4000}
    assert values["spend"] == {"currency": "USD"}, "sums for reports need Redis"


def test_keys_of_the_sample_work_with_their_secrets() -> None:
    with Stack() as worker:
        config = litellm.config(worker.sim.url)
        config["model_list"] = [one for one in config["model_list"] if litellm.MARK not in json.dumps(one)]
        config["model_list"][0]["litellm_params"]["model"] = "hosted_vllm/sim"
        del config["router_settings"]
        rows = [one for kind in litellm.rows().values() for one in kind]
        values, _ = imported(config, rows)
        with Stack((), values, environ=VARIABLES) as stack:

            def status(number: int, model: str) -> int:
                body = {"model": model, "messages": [{"role": "user", "content": "a"}]}
                secret = {"authorization": f"Bearer {litellm.secret(number)}"}
                return httpx.post(stack.url + "/chat/completions", json=body, headers=secret, timeout=30).status_code

            assert status(0, "llama") == 200  # its team's key, for all models
            assert status(3, "llama") == 200
            assert status(3, "qwen") == 404  # neither the key nor its team may use it
            assert status(7, "llama") == 401  # it is blocked
            assert status(40, "llama") == 401  # there is none
            record = next(one for one in stack.records() if one["key"] == "app-3")
            assert (record["team"], record["model"], record["status"]) == ("red", "llama", 200)
        asked = [json.loads(one.body) for one in worker.sim.entries if one.body]
        assert [body["max_tokens"] for body in asked] == [64, 64]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "config.yaml is not YAML: ParserError"),
        ("- a", "config.yaml is not a mapping of options"),
        ("model_list: []", "there is nothing to write: must hold at least one model"),
        ("model_list: &a [*a]", "config.yaml is not YAML: ValueError"),
    ],
)
def test_what_cannot_be_imported_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    made = called("import", "litellm", "config.yaml", folder=tmp_path)
    assert made.returncode in (1, 2)
    assert made.stdout == ""
    assert made.stderr.startswith(f"dragoman: {said}")


def test_rows_may_be_lines_but_not_hashes_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    (tmp_path / "a.json").write_text(json.dumps(row()) + "\n" + json.dumps({"team_id": "t", "keys": []}) + "\n")
    (tmp_path / "b.json").write_text(json.dumps({"keys": [{"token": "1" * 64}], "total_pages": 1}))
    (tmp_path / "c.json").write_text("[1]")
    (tmp_path / "d.json").write_text(json.dumps({"keys": ["1" * 64]}))
    words = ("import", "litellm", "config.yaml", "--keys", "a.json", "--keys", "b.json")
    made = called(*words, folder=tmp_path)
    assert (made.returncode, set(yaml.safe_load(made.stdout)["keys"])) == (0, {"k", "litellm-111111111111"})
    strange = [{"token": {"a": 1}, "team_id": "t"}, {"token": 3}, {"token": "\ud800", "key_alias": "half"}]
    (tmp_path / "e.json").write_text(json.dumps(strange))
    made = called(*words, "--keys", "e.json", folder=tmp_path)
    assert (made.returncode, "half" in yaml.safe_load(made.stdout)["keys"]) == (1, True), made.stderr
    assert "# --keys: 2 rows have a token that is not text" in made.stdout
    (tmp_path / "c.json").write_text("[" * 100_000)
    deep = called(*words, "--keys", "c.json", folder=tmp_path)
    assert deep.stderr == "dragoman: c.json is neither JSON nor lines of JSON\n"
    (tmp_path / "c.json").write_text("[1]")
    refused = called(*words, "--keys", "c.json", folder=tmp_path)
    assert refused.stderr == "dragoman: c.json holds something other than rows of keys, teams and budgets\n"
    bare = called(*words, "--keys", "d.json", folder=tmp_path)
    assert bare.stderr.startswith("dragoman: d.json holds hashes without options: ")


@pytest.mark.long
def test_keys_beyond_the_room_of_a_configuration_need_a_file(tmp_path: Path) -> None:
    rows = [row(token=f"{number:064x}", key_alias=f"key-{number}", blocked=True) for number in range(6000)]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    (tmp_path / "keys.json").write_text(json.dumps(rows))
    made = called("import", "litellm", "config.yaml", "--keys", "keys.json", folder=tmp_path)
    assert "`keys_file` names: gateway.yaml is too large" in made.stderr
    entries = made.stdout.partition("\nkeys:\n")[2]
    (tmp_path / "keys.yaml").write_text("\n".join(line.removeprefix("  ") for line in entries.splitlines()))
    (tmp_path / "gateway.yaml").write_text(made.stdout.partition("\nkeys:\n")[0] + "\nkeys_file: keys.yaml\n")
    checked = called("check", "gateway.yaml", folder=tmp_path)
    assert "1 model, 6000 keys" in checked.stdout, checked.stderr
