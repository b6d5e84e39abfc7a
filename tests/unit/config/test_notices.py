"""``[notices]`` of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.config import ConfigError, load_settings
from ffdl_batch.domain.incident import Origin
from ffdl_batch.domain.notice import NoticeSettings


def loaded(tmp_path: Path, text: str) -> NoticeSettings:
    (tmp_path / "ffdl.toml").write_text(text)
    return load_settings(cwd=tmp_path, environ={"HOME": str(tmp_path)}).notices


def test_notice_settings_read_all_keys(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        '[notices]\nsmtp = "mail.example.org:587"\nfrom = "f@example.org"\nmail = ["ops@example.org"]\n'
        'webhooks = ["https://chat.example.org/x"]\norigins = ["node"]\nlogin_file = "/etc/ffdl/login"\n',
    )
    assert found == NoticeSettings(
        ("ops@example.org",), ("https://chat.example.org/x",), (Origin.NODE,), "mail.example.org:587", "f@example.org",
        "/etc/ffdl/login",
    )  # fmt: skip


def test_notice_settings_are_empty_by_default(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == NoticeSettings()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('mails = ["x"]', "mails is no key"),
        ('mail = ["ops@example.org"]', "notices.smtp no relay"),
        ('mail = ["ops"]', "'ops' is no mail address"),
        ('mail = "ops@example.org"', "must be a list"),
        ('webhooks = ["ftp://example.org"]', "no address of a web server"),
        ('webhooks = ["https://"]', "no address of a web server"),
        ('origins = ["nodes"]', "known are user, data"),
        ('ca_file = "ca.pem"', "must be an absolute path"),
        ("smtp = 25", "must be a text"),
    ],
)
def test_notice_settings_error_names_file_and_key(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        loaded(tmp_path, f"[notices]\n{line}\n")
    assert str(tmp_path / "ffdl.toml") in str(refused.value)
