"""Keys of the configuration and of the file beside it, and when a file has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Watch, watched_files
from tests.support.standins.serving import certificate
from tests.unit.config.reading import HASH, SMALL, faults, read


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
    assert watched_files(config) == (str(tmp_path / "more.yaml"), str(tmp_path / "secret"))
    assert watched_files(read(tmp_path, SMALL)) == ()


def test_files_that_workers_and_services_are_reached_by(tmp_path: Path) -> None:
    for name, text in (("key", "k" * 32), ("proxy", "http://me:secret@p:1"), ("url", "redis://h"), ("salt", "s" * 32)):
        (tmp_path / name).write_text(text)
    ca = certificate(tmp_path)[0].name
    model = f"{SMALL.replace('http://', 'https://')}    api_key_file: key\n    proxy_file: proxy\n    ca_file: {ca}\n"
    redis = (
        "redis: {url_file: url, password_file: key}\ncache_salt: {secret_file: salt}\n"
        + f"keys: {{a: {{hash: {HASH}}}}}\n"
    )
    found = {Path(name).name for name in watched_files(read(tmp_path, model + redis))}
    assert found == {"key", "proxy", ca, "url", "salt"}


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
