"""The text of pages: what is shown, in linear time."""

from __future__ import annotations

import time

import pytest

from gateway.tools.page import text_of


@pytest.mark.parametrize(
    ("html", "title", "text"),
    [
        ("<title>A &amp; B</title><h1>One</h1><p>two <b>three</b>\n four</p>", "A & B", "One\ntwo three\nfour"),
        ("<p>a<!-- hidden > <p> -->b</p><script>if (a < b) x('<p>')</script><style>p{}</style>c", "", "a\nb\nc"),
        ("plain &lt;text&gt;", "", "plain <text>"),
        ("a < b", "", "a"),
        ("<script>never closed", "", ""),
        ("<TITLE\n>x</TITLE><P>\xa0y\u2003</P>", "x", "y"),
        ("", "", ""),
    ],
)
def test_what_a_page_shows(html: str, title: str, text: str) -> None:
    assert text_of(html) == (title, text)


@pytest.mark.parametrize("piece", ["<", "<!--", "<script>", "<p>", "&", "</", "<a ", " ", "\n", "\u2003", "<title"])
def test_the_time_grows_with_the_length_alone(piece: str) -> None:
    began = time.thread_time()
    text_of(piece * (1_000_000 // len(piece)))
    assert time.thread_time() - began < 5
