"""gateway.yaml and the environment: what is read, and what is said about what is wrong."""

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

from gateway.config import Available, Config, ConfigError, Key, Listen, Model, Watch, json_schema, load
from gateway.config.faults import masked
from gateway.config.kinds import OWN_HEADERS
from gateway.config.loading import Written
from gateway.config.model import Deadlines
from gateway.config.secrets import read_secrets, with_secrets
from gateway.config.source import resolve
from tests.sampled import examples

ROOT = Path(__file__).resolve().parent.parent
BROKEN = ROOT / "tests" / "broken_configs"
KNOWN = Available(
    {"openai": ("/openai", "/"), "ollama": ("/ollama",)},
    backends=frozenset({"openai", "vllm"}),
    kv_transfer=frozenset({"vllm"}),
    lora=frozenset({"vllm"}),
    kv_events=frozenset({"vllm"}),
)
SMALL = "models:\n  small:\n    backend: openai\n    workers: [http://127.0.0.1:8081]\n"
HASH = "sha256:" + "ab" * 32


def read(folder: Path, text: str | bytes, **environ: str) -> Config:
    path = folder / "gateway.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, KNOWN, environ)


def outcome(folder: Path, text: str | bytes, **environ: str) -> None:
    """Reads it; anything that is raised but faults, fit to be printed, fails the test."""
    said: list[str] = ["-"]
    try:
        read(folder, text, **environ)
    except ConfigError as error:
        said = [str(fault) for fault in error.faults]
    assert said
    assert all(line.isprintable() for line in said)


def faults(folder: Path, text: str | bytes, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **environ)
    return [str(fault).replace(f"{folder}{os.sep}", "") for fault in caught.value.faults]


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


FILES = sorted(files_of_options(json_schema(), ""))
assert {("console", "key_file"), ("keys_file",), ("models", "*", "ca_file"), ("jwt", "jwks_file")} < set(FILES)


# ---- broken files


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
        lines += [f"{path[0]}:", f"  {path[1]}:", "    url: http://127.0.0.1:1", "    name: abc"]
        lines += [f"    {path[2]}: none"]
    elif len(path) == 2:
        others = {"jwt": ["  issuer: a", "  audience: b"], "budget_webhook": ["  url: http://127.0.0.1:1"]}
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


# ---- what is read


def test_smallest_file_has_all_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL)
    assert config == Config(models={"small": Model(backend="openai", workers=("http://127.0.0.1:8081",))})
    assert config.auth == "open"
    assert config.listen == Listen(host="127.0.0.1", port=8080, keep_alive_s=75, max_body_bytes=32 << 20)
    assert config.dialect("openai").enabled
    assert config.dialect("openai").prefixes is None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("500ms", 0.5), ("30s", 30.0), ("1m", 60.0), ('"45"', 45.0), ("1.5s", 1.5)],
)
def test_durations(tmp_path: Path, written: str, seconds: float) -> None:
    assert read(tmp_path, f"{SMALL}deadlines:\n  connect_s: {written}\n").deadlines.connect_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "size"),
    [("2048", 2048), ("64KiB", 65536), ("1MB", 10**6), ("1 GiB", 1 << 30), ("1.5KiB", 1536), ("2kB", 2000)],
)
def test_sizes(tmp_path: Path, written: str, size: int) -> None:
    assert read(tmp_path, f"{SMALL}listen:\n  max_body_bytes: {written}\n").listen.max_body_bytes == size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("FALSE", False), ("no", "no"), ("on", "on"),
        ("12", 12), ("-3", -3), ("0755", 755), ("1:30", "1:30"), ("1_000", "1_000"), (".5", 0.5), ("1e3", 1000.0),
        ("2027-01-31", "2027-01-31"), ("0x1f", "0x1f"), ("9" * 30, 1e30), ("1.2.3", "1.2.3"), ("-", "-"), (".", "."),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    got = resolve(text)
    assert got == value
    assert type(got) is type(value)


def test_quoted_text_stays_text_and_names_may_look_like_numbers(tmp_path: Path) -> None:
    model = "    backend: openai\n    workers: [http://127.0.0.1:8081]\n    upstream_model: '8'\n"
    config = read(tmp_path, f"models:\n  7:\n{model}  on:\n{model}")
    assert sorted(config.models) == ["7", "on"]
    assert config.models["7"].upstream_model == "8"


def test_aliases_of_yaml_are_written_out(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    deadlines: &slow\n      idle_s: 7\ndeadlines: *slow\n")
    assert config.deadlines.idle_s == 7
    said = faults(tmp_path, SMALL + "    deadlines: &slow\n      idle_s: x\ndeadlines: *slow\n")
    assert [line.split(" must")[0] for line in said] == [
        "gateway.yaml:6: deadlines.idle_s:",
        "gateway.yaml:6: models.small.deadlines.idle_s:",
    ]


def test_an_anchor_may_be_given_again(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f"{SMALL}    deadlines: &a\n      idle_s: 7\nlisten: &b\n  port: 1\nqueue: {{timeout_s: &a 3}}\n"
        "health: {interval_s: *a}\n",
    )
    assert config.health.interval_s == 3


def test_empty_sections_are_defaults(tmp_path: Path) -> None:
    names = [name for name in Config.model_fields if name not in ("models", "keys_file")]
    assert read(tmp_path, SMALL + "".join(f"{name}:\n" for name in names)) == read(tmp_path, SMALL)


def test_worker_addresses_lose_their_last_slash_and_keep_their_base(tmp_path: Path) -> None:
    text = "models:\n  a:\n    backend: vllm\n    workers: ['http://h:1/', 'https://[::1]:2/base/']\n"
    assert read(tmp_path, text).models["a"].workers == ("http://h:1", "https://[::1]:2/base")


def test_deadlines_of_a_model_override_only_what_they_say(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    deadlines: {idle_s: 7}\ndeadlines: {connect_s: 1, idle_s: 9, total_s: 1h}\n")
    assert config.deadlines_for("small") == Deadlines(connect_s=1, idle_s=7, total_s=3600)
    config = read(tmp_path, SMALL + "    deadlines: {total_s: null}\ndeadlines: {total_s: 1h}\n")
    assert config.deadlines_for("small").total_s is None


def test_everything_is_frozen_and_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_LISTEN__PORT", "9000")
    monkeypatch.setenv("LISTEN", '{"port": 9001}')
    config = Config()
    assert config.listen.port == 8080
    with pytest.raises(ValueError, match="frozen"):
        config.listen = Listen()
    with pytest.raises(ValueError, match="frozen"):
        config.listen.port = 1


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.9.9.9", 1), ("::1", 1), ("localhost", 1), ("0.0.0.0", 0), ("::", 0), ("localhost.evil", 0)],
)
def test_loopback(tmp_path: Path, host: str, inside: int) -> None:
    text = f'{SMALL}listen:\n  host: "{host}"\n'
    if inside:
        assert read(tmp_path, text).auth == "open"
    else:
        assert "is open to other machines" in faults(tmp_path, text)[0]
    assert read(tmp_path, text + "auth: open\n").auth == "open"
    assert read(tmp_path, f"{text}keys: {{a: {{hash: {HASH}}}}}\n").auth == "keys"


# ---- keys


def test_keys_file_adds_to_keys(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "keys.yaml").write_text(
        f"team-b:\n  hash: {HASH.replace('ab', 'cd')}\n  expires: 2027-01-31\n"
    )
    config = read(tmp_path, f"{SMALL}keys_file: secret/keys.yaml\nkeys:\n  team-a:\n    hash: {HASH}\n")
    assert sorted(config.keys) == ["team-a", "team-b"]
    assert config.auth == "keys"
    assert str(config.keys["team-b"].expires) == "2027-02-01 00:00:00+00:00"


def test_a_file_of_keys_may_be_larger_than_the_rest(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(
        "".join(f"key-{number}:\n  hash: sha256:{number:064x}\n" for number in range(12_000))
    )
    assert (tmp_path / "keys.yaml").stat().st_size > 1 << 20
    assert len(read(tmp_path, f"{SMALL}keys_file: keys.yaml\n").keys) == 12_000
    with open(tmp_path / "keys.yaml", "a") as file:
        file.write("#" * (1 << 25))
    assert faults(tmp_path, f"{SMALL}keys_file: keys.yaml\n") == ["keys.yaml: (file): is larger than 32 MiB"]


def test_files_that_say_who_may_call(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(f"team-a: {{hash: {HASH}}}")
    (tmp_path / "secret").write_text("s" * 40)
    pairs = "".join(f"  {name}: {{aws_access_key_id: AKID{name}, aws_secret_file: secret}}\n" for name in "bc")
    config = read(tmp_path, f"{SMALL}keys_file: more.yaml\nkeys:\n{pairs}")
    assert config.caller_files == (str(tmp_path / "more.yaml"), str(tmp_path / "secret"))
    assert read(tmp_path, SMALL).caller_files == ()


def test_a_file_has_changed_once_it_is_still(tmp_path: Path) -> None:
    file, link = tmp_path / "keys", tmp_path / "link"
    link.symlink_to("keys")
    file.write_text("one")
    watch = Watch([str(link)])
    assert not watch.changed()
    for text in ("one, tw", "one, two"):
        file.write_text(text)
        assert not watch.changed(), "it is being written"
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    (tmp_path / "other").write_text("one, two")
    link.unlink()
    assert [watch.changed() for _ in range(3)] == [False, True, False], "it is gone"
    link.symlink_to("other")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_what_was_read_meanwhile_is_no_change(tmp_path: Path) -> None:
    file, other = tmp_path / "keys", tmp_path / "other"
    file.write_text("one")
    other.write_text("one")
    watch = Watch([str(file)])
    file.write_text("one, two")
    watch.take([str(file), str(other)], watch.look())
    assert [watch.changed() for _ in range(2)] == [False, False]
    looked = watch.look()
    file.write_text("one, two, three")  # after it was read
    watch.take([str(file)], looked)
    assert [watch.changed() for _ in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2027-01-31", "2027-02-01 00:00:00+00:00"),
        ("2027-01-31T12:00:00Z", "2027-01-31 12:00:00+00:00"),
        ("2027-01-31 12:00:00+02:00", "2027-01-31 12:00:00+02:00"),
        ("2027-01-31T12:00", "2027-01-31 12:00:00+00:00"),
    ],
)
def test_expiry(tmp_path: Path, written: str, meant: str) -> None:
    config = read(tmp_path, f'{SMALL}keys:\n  a:\n    hash: {HASH}\n    expires: "{written}"\n')
    assert str(config.keys["a"].expires) == meant


# ---- secrets of workers


def test_worker_key_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("canary-upstream\n")
    config = read(tmp_path, SMALL + "    api_key_file: key\n    headers: {X-Token: canary-header}\n")
    assert config.models["small"].api_key == "canary-upstream"
    assert "canary" not in repr(config)
    (tmp_path / "key").write_text("canary-other\n")
    assert read(tmp_path, (tmp_path / "gateway.yaml").read_text()) != config


def test_worker_key_from_the_environment(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    api_key_env: UPSTREAM_KEY\n", UPSTREAM_KEY="canary-upstream")
    assert config.models["small"].api_key == "canary-upstream"
    assert "canary" not in repr(config) + config.model_dump_json()


def test_worker_key_that_cannot_be_a_header(tmp_path: Path) -> None:
    wrong = "gateway.yaml:5: models.small.api_key_file: must lead to one line of printable ASCII without spaces"
    for content in (b"", b"\n", b"a\nb", b"a b", b"k\xc3\xa9y", b"x" * 20000, b"a\x00"):
        (tmp_path / "key").write_bytes(content)
        assert faults(tmp_path, SMALL + "    api_key_file: key\n") == [wrong]


def test_headers_that_the_transport_writes_are_refused(tmp_path: Path) -> None:
    assert {"host", "content-length", "transfer-encoding", "connection"} <= OWN_HEADERS
    for header in OWN_HEADERS:
        assert faults(tmp_path, SMALL + f"    headers:\n      {header.title()}: x\n")


# ---- environment


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        SMALL + "listen:\n  port: 1\n  host: localhost\n",
        DRAGOMAN_LISTEN__PORT="9000",
        DRAGOMAN_DEADLINES__IDLE_S="2m",
        DRAGOMAN_LOG__REQUESTS="false",
        DRAGOMAN_DIALECTS__OPENAI__PREFIXES='["/v9"]',
        OTHER_LISTEN__PORT="1",
    )
    assert (config.listen.port, config.listen.host) == (9000, "localhost")
    assert config.deadlines.idle_s == 120
    assert not config.log.requests
    assert config.dialect("openai").prefixes == ("/v9",)


def test_environment_alone_is_enough_and_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(SMALL)
    assert load(None, KNOWN, {"DRAGOMAN_CONFIG": str(tmp_path / "other.yaml")}).models
    models = {"small": {"backend": "openai", "workers": ["http://127.0.0.1:8081"]}}
    config = load(None, KNOWN, {"DRAGOMAN_MODELS": json.dumps(models)})
    assert list(config.models) == ["small"]
    with pytest.raises(ConfigError, match="must hold at least one model"):
        load(None, KNOWN, {})


def test_what_the_environment_lacks_has_no_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, KNOWN, {"DRAGOMAN_LISTEN__PORT": "0", "DRAGOMAN_AUTH": "keys"})
    assert str(caught.value).splitlines() == [
        "environment: DRAGOMAN_AUTH: asks for keys, but there are none in keys or keys_file",
        "environment: models: must hold at least one model",
    ]


def test_what_a_section_lacks_is_told_at_its_line(tmp_path: Path) -> None:
    said = faults(tmp_path, SMALL + "redis:\n  db: 1\njwt: {issuer: a, jwks_url: https://i/k}\n")
    assert said == [
        "gateway.yaml:5: redis: must say where: addresses or url",
        "gateway.yaml:7: jwt.audience: is required",
    ]


def test_environment_reaches_names_that_no_variable_could_hold(tmp_path: Path) -> None:
    text = SMALL.replace("small", "org/GPT-4.1")
    config = read(tmp_path, text, DRAGOMAN_MODELS__ORG_GPT_4_1__MAX_CONTEXT="4096")
    assert config.models["org/GPT-4.1"].max_context == 4096


def test_environment_joins_mappings_and_replaces_lists(tmp_path: Path) -> None:
    models = {"small": {"workers": ["http://h:9"]}, "new": {"backend": "vllm", "workers": ["http://h:8"]}}
    config = read(tmp_path, SMALL, DRAGOMAN_MODELS=json.dumps(models), DRAGOMAN_MODELS__SMALL__MAX_CONTEXT="5")
    assert config.models["small"].workers == ("http://h:9",)
    assert config.models["small"].backend == "openai"
    assert config.models["small"].max_context == 5
    assert config.models["new"].backend == "vllm"


def test_environment_takes_options_back(tmp_path: Path) -> None:
    text = SMALL + "    max_context: 5\n"
    assert read(tmp_path, text, DRAGOMAN_MODELS__SMALL__MAX_CONTEXT="null").models["small"].max_context is None


def test_a_fault_names_the_variable_that_replaced_the_line(tmp_path: Path) -> None:
    said = faults(tmp_path, SMALL, DRAGOMAN_MODELS='{"small": {"workers": ["x"], "nothing": 1}}')
    assert said == [
        "environment: DRAGOMAN_MODELS: small.nothing is not an option",
        "environment: DRAGOMAN_MODELS: small.workers.0 must begin with http:// or https://",
    ]


def test_variables_of_kubernetes_services_are_passed_over(tmp_path: Path) -> None:
    links = {f"DRAGOMAN_{name}": "8080" for name in ("SERVICE_PORT", "SERVICE_PORT_HTTP", "METRICS_SERVICE_HOST")}
    links |= {f"DRAGOMAN_{name}": "tcp://10.0.0.1:8080" for name in ("PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR")}
    assert read(tmp_path, SMALL, **links) == read(tmp_path, SMALL)
    assert faults(tmp_path, SMALL, DRAGOMAN_PORT="8080") == ["environment: DRAGOMAN_PORT: sets no option"]


# ---- names that only the program knows


def test_without_known_names_none_is_checked(tmp_path: Path) -> None:
    text = SMALL.replace("backend: openai", "backend: other") + "dialects:\n  klingon:\n    prefixes: [/k]\n"
    assert len(faults(tmp_path, text)) == 2
    assert load(tmp_path / "gateway.yaml", None, {}).dialect("klingon").prefixes == ("/k",)


def test_prefixes_may_move_and_swap(tmp_path: Path) -> None:
    text = SMALL + "dialects:\n  openai: {prefixes: [/ollama]}\n  ollama: {prefixes: [/, /openai]}\n"
    config = read(tmp_path, text)
    assert config.dialect("openai").prefixes == ("/ollama",)
    assert config.dialect("ollama").prefixes == ("", "/openai")
    text = SMALL + "dialects:\n  openai: {prefixes: [/ollama]}\n  ollama: {enabled: false}\n"
    assert not read(tmp_path, text).dialect("ollama").enabled


# ---- where Redis is


def redis(folder: Path, section: str, **environ: str) -> tuple[object, ...]:
    found = read(folder, f"{SMALL}redis:\n  {section}\n", **environ).redis
    assert found is not None
    assert "canary" not in repr(found)
    return tuple(found.server)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://cache", (("cache:6379",), 0, None, None, False)),
        ("redis://cache/", (("cache:6379",), 0, None, None, False)),
        ("rediss://Cache.internal:7000/2", (("cache.internal:7000",), 2, None, None, True)),
        ("redis://[::1]:7000", (("[::1]:7000",), 0, None, None, False)),
        ("redis://limits:canary@cache", (("cache:6379",), 0, "limits", "canary", False)),
        ("redis://:can%40ary%2F@cache/15", (("cache:6379",), 15, None, "can@ary/", False)),
        ("redis://li%3Amits:@cache", (("cache:6379",), 0, "li:mits", None, False)),
    ],
)
def test_a_url_says_where_redis_is(tmp_path: Path, url: str, server: tuple[object, ...]) -> None:
    """By itself without a password; from a file or the environment with one."""
    password = "password_env: PASSWORD\n  " if server[2] and not server[3] else ""
    (tmp_path / "url").write_text(url + "\n")
    if password:
        server = (*server[:3], "canary", server[4])
    elif server[3] is None:
        assert redis(tmp_path, f"url: '{url}'") == server
        assert redis(tmp_path, "db: 0", DRAGOMAN_REDIS__URL=url) == server
    assert redis(tmp_path, f"{password}url_env: REDIS_URL", REDIS_URL=url, PASSWORD="canary") == server
    assert redis(tmp_path, f"{password}url_file: url", PASSWORD="canary") == server


def test_addresses_with_a_password_from_the_environment(tmp_path: Path) -> None:
    section = "addresses: [a:1, b:2]\n  mode: sentinel\n  username: limits\n  tls: true\n  password_env: PASSWORD"
    assert redis(tmp_path, section, PASSWORD="canary") == (("a:1", "b:2"), 0, "limits", "canary", True)


WRONG_URLS = r"""http://cache cache:6379 redis:// redis://cache:0 redis://cache:port redis://cache:70000 redis://cache/name
    redis://cache/0/1 redis://cache?db=1 redis://cache#1 redis://a,b:6379 redis://:can#ary@cache redis://:can/ary@cache
    redis://ca\che unix:///run/redis.sock redis://[::1"""


@pytest.mark.parametrize("url", WRONG_URLS.split())
def test_urls_that_say_nothing_of_the_kind(tmp_path: Path, url: str) -> None:
    said = "must be redis://[user@]host[:port][/db], or rediss:// for TLS"
    text = f"{SMALL}redis:\n  url_env: REDIS_URL\n"
    assert faults(tmp_path, text, REDIS_URL=url) == [f"gateway.yaml:6: redis.url_env: leads to a text that {said}"]


def test_a_cluster_has_one_database(tmp_path: Path) -> None:
    for section, option in (("url: redis://cache/1", "url"), ("addresses: [cache:1]\n  db: 1", "db")):
        (found,) = faults(tmp_path, f"{SMALL}redis:\n  mode: cluster\n  {section}\n")
        assert found.endswith(f": redis.{option}: must name database 0: a cluster has no other")


@pytest.mark.parametrize(
    ("host", "metrics", "apart"),
    [
        ("127.0.0.1", "127.0.0.1:8080 0.0.0.0:8080 [::]:8080 localhost:8080", False),
        ("127.0.0.1", "127.0.0.1:8081 127.0.0.2:8080", True),
        ("0.0.0.0", "127.0.0.1:8080", False),
        ("0.0.0.0", "[::1]:8080", True),
        ("::", "[::1]:8080 0.0.0.0:8080", False),
        ("::1", "[0:0::1]:8080", False),
        ("gate.example", "Gate.example:8080", False),
        ("10.0.0.1", "gate.example:8080", True),
    ],
)
def test_metrics_are_not_where_clients_call(tmp_path: Path, host: str, metrics: str, apart: bool) -> None:
    for listen in metrics.split():
        text = SMALL + f"auth: open\nlisten: {{host: '{host}', port: 8080}}\nmetrics:\n  listen: '{listen}'\n"
        if apart:
            assert read(tmp_path, text).metrics.listen == listen
            continue
        (fault,) = faults(tmp_path, text)
        assert fault.startswith("gateway.yaml:8: metrics.listen: is where clients call")


# ---- files of any size and kind


KEYS = {"hash": "sha256:nothing", "models": "[smal]", "dialects": "[opnai]", "expires": "never", "hsh": "1"}


@pytest.mark.parametrize("option", KEYS)
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


def test_a_configuration_without_its_secrets_stays_so(tmp_path: Path) -> None:
    config = Config(models={"m": Model(backend="vllm", workers=("http://a",), api_key_env="KEY")})
    secrets, wrong = read_secrets(config, {"KEY": "canary-key"})
    assert (secrets, wrong) == ({("models", "m"): {"api_key": "canary-key"}}, [])
    filled = with_secrets(config, secrets)
    assert (config.models["m"].api_key, filled.models["m"].api_key) == (None, "canary-key")
    assert "canary-key" not in repr(filled)
