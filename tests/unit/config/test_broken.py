"""Broken files: each fault is named with its line, and thousands of them in bounded time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, Key, Model, load
from gateway.config.faults import masked
from gateway.config.loading import Written
from tests.support.sampled import examples, sampled
from tests.unit.config.reading import HASH, KNOWN, SMALL, faults, read

ROOT = Path(__file__).resolve().parents[3]
BROKEN = ROOT / "tests" / "unit" / "broken_configs"


def outcome(folder: Path, text: str | bytes, **environ: str) -> None:
    """Reads it; anything that is raised but faults, fit to be printed, fails the test."""
    said: list[str] = ["-"]
    try:
        read(folder, text, **environ)
    except ConfigError as error:
        said = [str(fault) for fault in error.faults]
    assert said
    assert all(line.isprintable() for line in said)


def files_of_options(schema: dict[str, Any], name: str, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every option that names a file; `*` stands for a name in a mapping."""
    for option, one in schema["$defs"].get(name, schema)["properties"].items():
        if option.endswith("_file"):
            yield (*at, option)
        for inner, more in (
            (one, ()),
            *((kind, ()) for kind in one.get("anyOf", ())),
            (one.get("additionalProperties"), ("*",)),
        ):
            if isinstance(inner, dict) and "$ref" in inner:
                yield from files_of_options(schema, inner["$ref"].rpartition("/")[2], (*at, option, *more))


FILES = sorted(files_of_options(json.loads((ROOT / "docs" / "gateway.schema.json").read_text()), ""))
assert {("console", "key_file"), ("keys_file",), ("models", "*", "ca_file"), ("jwt", "jwks_file")} < set(FILES)


@pytest.mark.parametrize("path", sorted(BROKEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_broken_config(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file says what it is to be told, whole and in order; `# env NAME=value` lines set the environment."""
    monkeypatch.chdir(BROKEN)
    environ = {"DEFINED_KEY": "canary-key", "SPACED_KEY": "canary key"}
    environ.update(re.findall(r"^# env (\w+)=(.*)$", path.read_text(), re.MULTILINE))
    with pytest.raises(ConfigError) as caught:
        load(path.name, KNOWN, environ)
    said = "\n".join(str(fault) for fault in caught.value.faults) + "\n"
    assert said == path.with_suffix(".expected").read_text()
    assert said == f"{caught.value}\n"
    assert "canary" not in said
    place = r"([\w./]+:[1-9]\d*|environment)" if path.stat().st_size else re.escape(path.name)
    assert all(re.match(rf"{place}: \S.*: \S", line) for line in said.splitlines())


def test_every_wrong_value_is_reported_in_one_run_and_rules_between_options_wait(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "models:\n  a: {backend: nothing, workers: ['http://h:1'], hedge_s: never}\n"
        "limits:\n- {name: a, kind: none, limit: 1}\n- {name: budget, kind: requests, limit: 1, per_s: 0}\n"
        "budgets:\n- {name: a, amount: 1}\n- {name: b, amount: 0}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "gateway.yaml", KNOWN, {})
    places = ["models.a.hedge_s", "limits.0.kind", "limits.1.per_s", "budgets.1.amount"]
    assert ([fault.position.key for fault in caught.value.faults], caught.value.partial) == (places, True)


def test_there_are_enough_broken_configs_and_none_is_left_over() -> None:
    names = {path.stem for path in BROKEN.glob("*.yaml")}
    assert len(names) >= 40
    assert names == {path.stem for path in BROKEN.glob("*.expected")}


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"listen:\n  host: \xff\xfe\n", 2, "is not UTF-8 text"),
        (b"listen:\n  host: a\x00b\n", 2, "holds a control character"),
        (b"[" * 500_000, 1, "is nested too deeply"),
        (b"models: " + b"{a: " * 10_000, 1, "is nested too deeply"),
        (b"a: &a " + b"[" * 15 + b"]" * 15 + b"\nb: " + b"[" * 9 + b"*a" + b"]" * 9, 2, "is nested too deeply"),
        (b"\xef\xbb\xbf- a\n", 1, "must be a mapping of options"),
    ],
    ids=["latin", "nul", "deep", "deep-mapping", "deep-alias", "list"],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, line: int, message: str) -> None:
    assert faults(tmp_path, data) == [f"gateway.yaml:{line}: (file): {message}"]


def test_a_file_without_lines_is_named_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "gateway.yaml").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    for name in ("none.yaml", ".", "circle", "fifo", "none/gateway.yaml", "a\0b"):
        assert faults_of(tmp_path / name, r"\(file\): cannot be read: \w.*")
    assert faults_of(tmp_path / "large", r"\(file\): is larger than 1 MiB")
    assert faults_of(tmp_path / "closed" / "gateway.yaml", "models: must hold at least one model")


def faults_of(path: Path, words: str) -> bool:
    """Whether there is one fault, of `words`, and no line in it."""
    with pytest.raises(ConfigError) as caught:
        load(path, KNOWN, {})
    (fault,) = caught.value.faults
    return fault.position.line == 0 and re.fullmatch(f"[^:]+: {words}", str(fault)) is not None


@pytest.mark.parametrize("path", FILES, ids=".".join)
def test_every_file_that_is_named_and_cannot_be_read_is_named_with_the_line_of_its_option(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    """No option names a file that is looked for in vain without a word; what else is wrong is said beside it."""
    lines = ["models: {small: {backend: vllm, workers: ['https://127.0.0.1:1']}}"]
    if path[:2] == ("models", "*"):
        lines = ["models:", "  small:", "    backend: vllm", "    workers: ['https://127.0.0.1:1']"]
        lines += [f"    {path[2]}: none"]
    elif path[:2] == ("keys", "*"):
        lines += ["keys:", "  small:", "    aws_access_key_id: AKIDEXAMPLE", f"    {path[2]}: none"]
    elif len(path) == 3:
        client = ["    issuer: https://a", "    client_id: b", "    roles: {admin: [c]}"]
        more = client if path[1] == "oidc" else ["    name: abc"]
        lines += [f"{path[0]}:", f"  {path[1]}:", "    url: http://127.0.0.1:1", *more, f"    {path[2]}: none"]
    elif len(path) == 2:
        jwt = ["  issuer: a", "  audience: b", *(["  jwks_url: https://a"] if path[1] == "ca_file" else [])]
        others = {"jwt": jwt, "budget_webhook": ["  url: http://127.0.0.1:1"]}
        lines += [f"{path[0]}:", *others.get(path[0], ()), f"  {path[1]}: none"]
    else:
        lines += [f"{path[0]}: none"]
    said = faults(tmp_path, "\n".join(lines))
    where = f"gateway.yaml:{len(lines)}: {'.'.join(path).replace('*', 'small')}: "
    assert [line for line in said if line.startswith(where)], said
    if path[-1] not in ("key_file", "cert_file") and path != ("redis", "ca_file"):  # those need something beside them
        assert f"{where}names a file that cannot be read: No such file or directory" in said


def test_bom_and_crlf_are_fine(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode()).models["small"].backend == "openai"


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_text_ever_leads_to_anything_but_faults(tmp_path: Path, data: st.DataObject) -> None:
    """Pieces of real files, cut and joined at random."""
    pieces = ["- ", ": ", "\n", "  ", "\t", "&a ", "*a", "!!map ", *"{}[]", '"', "'", "|\n", "? ", "<<", "---\n"]
    pieces += [*(ROOT / "gateway.yaml").read_text().split(), "keys", "hash", "null", "true", "-1", "1e999", "_env_file"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=40)))
    outcome(tmp_path, text.encode("utf-8", "replace"))


ODD = [
    "",
    "open",
    "http://a",
    "http://[",
    "5s",
    HASH,
    "9" * 400,
    "9" * 400 + "GiB",
    "a\x00b",
    "\ud800",
    "\x1b[31m",
    ".",
]

Tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["small", "_x", "", "port", "\ud800", "a\x00"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(st.sampled_from([*Config.model_fields, "other"]), Tree), data=st.data())
def test_no_tree_ever_leads_to_anything_but_faults(tmp_path: Path, tree: dict[str, Any], data: st.DataObject) -> None:
    """Right names over wrong values, from the file and from the environment."""
    options = {
        name: data.draw(Tree) for name in data.draw(st.sets(st.sampled_from([*Model.model_fields, *Key.model_fields])))
    }
    tree = {**tree, data.draw(st.sampled_from(["models", "keys"])): {"one": options}}
    outcome(tmp_path, json.dumps(tree))
    outcome(tmp_path, "", **{f"DRAGOMAN_{name.upper()}": json.dumps(value) for name, value in tree.items()})


def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    key = "dgm_aaaa1111_" + "c" * 43 + "_000000"
    for text in (f"{key}: 1\n", f"log:\n  level: {key}\n", f"auth: {key}\n", f"keys:\n  {key}:\n    hash: {HASH}\n"):
        said = faults(tmp_path, SMALL + text)
        assert said
        assert "c" * 43 not in "".join(said)
    assert masked(f"a {key}\nb") == "a dgm_*** b"


@pytest.mark.parametrize("option", ["keys_file", "models.small.api_key_file", "models.small.ca_file"])
def test_names_of_files_that_are_none(tmp_path: Path, option: str) -> None:
    """A FIFO that nobody writes to would keep its reader for ever."""
    os.mkfifo(tmp_path / "fifo")
    text = SMALL.replace("http:", "https:") + "    " * option.startswith("models") + option.split(".")[-1]
    for name in ('"a\\0b"', ".", "/", "fifo"):
        (said,) = faults(tmp_path, f"{text}: {name}\n")
        assert said.startswith(f"gateway.yaml:5: {option}: names a file that cannot be read: ")


@pytest.mark.parametrize("path", FILES, ids=".".join)
def test_every_file_is_relative_to_the_folder_of_the_configuration(path: tuple[str, ...], tmp_path: Path) -> None:
    gathered = {"models": {"small": {"backend": "vllm", "workers": ["https://127.0.0.1:1"]}}}
    inner: dict[str, Any] = gathered
    for part in path[:-1]:
        inner = inner.setdefault("small" if part == "*" else part, {})
    inner[path[-1]] = "named"
    (tmp_path / "gateway.yaml").write_text(json.dumps(gathered))
    values: Any = Written(tmp_path / "gateway.yaml", {}).values
    for part in path:
        values = values["small" if part == "*" else part]
    assert values == str(tmp_path / "named")


KEYS = {"hash": "sha256:nothing", "models": "[smal]", "dialects": "[opnai]", "expires": "never", "hsh": "1"}


@pytest.mark.parametrize("option", sampled(KEYS, 3))
def test_of_thousands_of_faults_the_first_are_told_and_the_rest_counted(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of fault that an entry can have; names are compared for those that are told, and no others."""
    compared: list[object] = []

    def compare(*given: object) -> list[str]:
        compared.append(given)
        return []

    monkeypatch.setattr("gateway.config.faults.get_close_matches", compare)
    count = 5000
    good = "" if option == "hash" else "hash: 'sha256:{:064x}', "
    entries = [f"k{number}: {{{good.format(number)}{option}: {KEYS[option]}}}\n" for number in range(count)]
    (tmp_path / "more.yaml").write_text("".join(entries))
    said = faults(tmp_path, SMALL + "keys_file: more.yaml\n")
    assert len(said) == 101
    for number, line in enumerate(said[:100], 1):
        assert line.startswith(f"more.yaml:{number}: k{number - 1}.{option}"), line
    assert said[100] == f"more.yaml:101: (file): and {count - 100} more faults from here on"
    assert len(compared) <= 100


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"option{number}: 1\n" for number in range(10_000)),
        "listen:\n" + "".join(f"  option{number}: 1\n" for number in range(10_000)),
        "listen:\n" + "  port: 1\n" * 10_000,
        "limits:\n" + "- 1\n" * 10_000,
        "x" * 100_000 + ": [" + "[1]," * 10_000 + "]\n",
    ],
    ids=["top", "section", "twice", "items", "long-name"],
)
def test_a_large_file_full_of_faults_is_told_in_a_bounded_number_of_lines(tmp_path: Path, text: str) -> None:
    said = faults(tmp_path, SMALL + text)
    assert len(said) <= 101
    assert sum(map(len, said)) < 50_000
