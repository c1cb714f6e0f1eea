"""Options that say where Redis is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.reading import SMALL, faults, redis


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
