"""Lines of logs as HTML: colours, and nothing that a browser would execute."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.web.log_html import to_html


@pytest.mark.parametrize(
    ("line", "html"),
    [
        ("plain", "plain"),
        ("", ""),
        ("<script>alert('x')</script> & \"", "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;"),
        ("\x1b[31mred\x1b[0m not", '<span class="fg1">red</span> not'),
        ("\x1b[1;31mboth\x1b[22mred\x1b[39mnone", '<span class="b fg1">both</span><span class="fg1">red</span>none'),
        ("\x1b[95mbright\x1b[m", '<span class="fg13">bright</span>'),
        ("\x1b[41mback\x1b[49m", '<span class="bg1">back</span>'),
        ("\x1b[38;5;9mindexed", '<span class="fg9">indexed</span>'),
        ("\x1b[38;5;196mcube", '<span class="fg9">cube</span>'),
        ("\x1b[38;2;0;120;0mtrue", '<span class="fg2">true</span>'),
        ("\x1b[38:2:0:0:255mcolons", '<span class="fg12">colons</span>'),
        ("\x1b[38;5;999mwrong", "wrong"),
        ("\x1b[38;2;1mshort", "short"),
        ("\x1b[2K\x1b[1Gline", "line"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x07b", "a\\x07b"),
        ("cut \x1b[3", "cut \\x1b[3"),
        ("10%\r20%\r30%", "30%"),
        ("done\r", "done"),
        ("right-to-left \u202e", "right-to-left \\u202e"),
    ],
)
def test_to_html_keeps_colours_and_escapes_the_rest(line: str, html: str) -> None:
    assert str(to_html(line)) == html


@given(st.text(alphabet=st.sampled_from("\x1b[]0123456789;:mKab<>&\"'\r\x07\\"), max_size=60))
def test_to_html_makes_only_spans_with_known_classes(line: str) -> None:
    html = str(to_html(line))
    tags = re.findall(r"<[^>]*>", html)
    assert all(
        re.fullmatch(r"</span>|<span class=\"(?:[bdiu]|[fb]g\d{1,2})(?: (?:[bdiu]|[fb]g\d{1,2}))*\">", one)
        for one in tags
    )
    text = unescape(re.sub(r"<[^>]*>", "", html))
    assert "\x1b" not in text
