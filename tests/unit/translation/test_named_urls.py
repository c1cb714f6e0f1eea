"""A page that somebody has named, and no part of its address."""

from __future__ import annotations

import time

import pytest

from gateway.translation.named_urls import is_named

URL = "https://x.example/secret/path_(a)/b-c?token=abc&d=e"
TEXTS = (
    "{}",
    "Read {} please.",
    "Read {}.",
    "Is it {}?",
    "({})",
    "(see {}).",
    "<{}>",
    '"{}"',
    "'{}'",
    "`{}`",
    "**{}**",
    "[page]({}) says",
    "[page]({})and more",
    "[{}]",
    '<a href="{}">page</a>',
    "<a href={}>page</a>",
    '{{"url": "{}", "title": "t"}}',
    '{{\\"url\\": \\"{}\\"}}',
    "URL:{}",
    "- {}\n- other",
    "one {},https://other.example/ two",
    "https://other.example/,{}",
    "[a](https://other.example/)[b]({})",
    "{}#section",
    "\u770b{}\u3002",
    "\uff08{}\uff09",
    "|{}|",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_url_is_named_as_a_whole(text: str) -> None:
    assert is_named(URL, text.format(URL))


@pytest.mark.parametrize("text", TEXTS)
def test_no_part_of_a_named_url_is_named(text: str) -> None:
    named = text.format(URL)
    begun = [URL[:end] for end in range(len("https://x"), len(URL)) if is_named(URL[:end], named)]
    assert begun == []
    longer = [URL + more for more in ("x", "/x", "&x=y", "%20") if is_named(URL + more, named)]
    assert longer == []


@pytest.mark.parametrize(
    "text",
    [
        "https://go.example/?to={}",
        "https://archive.example/web/2020/{}",
        "http://go.example/#{}",
    ],
)
def test_a_url_inside_another_one_is_not_named(text: str) -> None:
    inner = "https://x.example/a"
    assert not is_named(inner, f"See {text.format(inner)} for more.")
    assert is_named(inner, f"See {text.format(inner)} and {inner} for more.")


def test_a_host_is_the_root_of_its_pages() -> None:
    assert is_named("https://x.example", "see https://x.example/ now")
    assert is_named("https://x.example/", "see https://x.example/ now")
    assert not is_named("https://x.example", "see https://x.example/page now")


@pytest.mark.parametrize(
    "many", ["http://x/", "http:/x", "http://xa#", "http://x)a", "http://x" + "." * 50 + "a", ",http://xa"]
)
def test_a_text_of_many_urls_takes_time_that_grows_with_it(many: str) -> None:
    def seconds(count: int) -> float:
        text = many * count
        began = time.process_time()
        assert not is_named("http://x", text.replace("http://x/", "http://x/a"))
        return time.process_time() - began

    assert seconds(100_000) < 40 * seconds(10_000) + 1
