"""URLs and hosts that users write, malformed ones too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ffdl_batch.domain.network_address import Url, is_authority, is_web_address, parse_url

ROOT = Path(__file__).parents[3]
MALFORMED = (
    "https://[::1", "https://[zz]:9", "https://a]b", "https://a[b", "https://\u2100", "https://[]", "https://[1.2.3.4]",
    "https://h:x", "https://h:99999", "https://h:0", "https://[::1]x", "https://[::1]:x",
)  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_parse_url_returns_none_for_malformed_url(text: str) -> None:
    assert parse_url(text) is None
    assert not is_web_address(text)
    assert not is_authority(text.removeprefix("https://"))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTPS://Host:8443/a/b?x#y", Url("https", "Host:8443", "host", 8443, "/a/b", True)),
        ("http://[::1]:80/", Url("http", "[::1]:80", "::1", 80, "/", False)),
        ("https://me:pw@h", Url("https", "me:pw@h", "h", 0, "", False)),
        ("//h:22", Url("", "h:22", "h", 22, "", False)),
        ("", Url("", "", "", 0, "", False)),
    ],
)
def test_parse_url_returns_parts(text: str, url: Url) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize("text", ["h", "h:9000", "a_b.example.org", "192.0.2.7:80", "[::1]", "[2001:db8::1]:443"])
def test_is_authority_accepts_host_and_port(text: str) -> None:
    assert is_authority(text) and is_web_address(f"https://{text}/x")


@pytest.mark.parametrize("text", ["", "me@h", "h/a", "h?a", "256.1.1.1", "::1", "a b", ":80", "h\n"])
def test_is_authority_rejects_other_text(text: str) -> None:
    assert not is_authority(text)


def test_only_one_module_parses_urls() -> None:
    """`urlsplit` and its like raise ValueError for some texts."""
    found = {
        str(file.relative_to(ROOT))
        for folder in ("ffdl_batch", "adapters")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"\burl(split|parse)\(", file.read_text())
    }
    assert found == {"ffdl_batch/domain/network_address.py"}
