"""What is asked for, what ssh's configuration makes of it, and which line of known_hosts is about whom."""

from __future__ import annotations

import base64
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.framing import at_login
from ffdl_batch.ssh.host_config import Destination, HostConfig, interpret, parse_options, read_destination
from ffdl_batch.ssh.host_keys import HostKey, KnownKey, check_host_key, read_lines

KEY = HostKey("ssh-ed25519", b"a key")
BLOB = base64.b64encode(KEY.blob).decode()
CONFIG = HostConfig("login", "login.example.org", "ada", known_hosts=("/home/ada/.ssh/known_hosts",))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("login", Destination("login")),
        ("ada@login.example.org:2222", Destination("login.example.org", "ada", 2222)),
        ("ssh://ada@login/", Destination("login", "ada")),
        ("[2001:db8::1]:22", Destination("2001:db8::1", "", 22)),
        ("ada@site.org@login", Destination("login", "ada@site.org")),
    ],
)
def test_read_destination_parses_user_host_and_port(text: str, found: Destination) -> None:
    assert read_destination(text) == found


@pytest.mark.parametrize("text", [
    "", "-oX", "a b", "login:99999", "login:x", "@login", "a;b", "$(id)", "-l@login", "$(id)@login", "a;b@login",
    "`id`@login", "a'b@login", "a\\@login", "user@", "-oProxyCommand=touch x",
])  # fmt: skip
def test_read_destination_rejects_unsafe_or_invalid_text_with_status_2(text: str) -> None:
    with pytest.raises(SshFailed) as raised:
        read_destination(text)
    assert raised.value.exit_code == 2


def test_ssh_config_reader_interprets_output_of_ssh() -> None:
    options = parse_options(
        "hostname login3.example.org\nuser ada\nport 2222\nidentityfile ~/.ssh/%r-key\nidentityfile ${KEYS}/two\n"
        "identitiesonly yes\nproxyjump gate,bob@inner:23\nproxycommand nc %h %p\nuserknownhostsfile /k/one /k/two\n"
        "globalknownhostsfile /g\nserveraliveinterval 0\nbatchmode yes\nconnecttimeout none\nidentityagent none\n"
    )
    found = interpret(Destination("login"), options, {"HOME": "/home/ada", "KEYS": "/keys", "SSH_AUTH_SOCK": "/a"})
    assert (found.hostname, found.port, found.key_name) == ("login3.example.org", 2222, "[login3.example.org]:2222")
    assert found.identity_files == ("/home/ada/.ssh/ada-key", "/keys/two") and found.identities_only
    assert (found.proxy_jump, found.proxy_command) == (("gate", "bob@inner:23"), "")
    assert found.known_hosts == ("/k/one", "/k/two", "/g")
    assert found.batch_mode and found.agent == "" and found.alive_interval_s == 15


def test_ssh_config_reader_rejects_unknown_token() -> None:
    with pytest.raises(SshFailed, match="%C"):
        interpret(Destination("login"), {"identityfile": ["~/%C"]}, {"HOME": "/h"})


@pytest.mark.parametrize(
    ("names", "is_about"),
    [
        ("login.example.org", True),
        ("LOGIN.example.org,other", True),
        ("*.example.org", True),
        ("*.example.org,!login.example.org", False),
        ("login?example.org", True),
        ("[login.example.org]:2222", False),
        ("other", False),
        ("|1|bm90|aGFzaA==", False),
    ],
)
def test_known_hosts_reader_matches_names_and_patterns_of_host(names: str, is_about: bool) -> None:
    found = list(read_lines(f"# a comment\n\n{names} ssh-ed25519 {BLOB} ada\nbroken\n", "/k", "login.example.org"))
    assert found == ([KnownKey(KEY, "/k", 3)] if is_about else [])


def test_known_hosts_reader_matches_host_with_port() -> None:
    (found,) = read_lines(f"[login]:2222 ssh-ed25519 {BLOB}\n", "/k", "[login]:2222")
    assert found.key == KEY


def test_check_host_key_rejects_changed_unknown_or_revoked_key() -> None:
    check_host_key(CONFIG, KEY, [KnownKey(KEY, "/k", 1)])
    other = KnownKey(HostKey("ssh-rsa", b"another"), "/k", 7)
    with pytest.raises(SshFailed, match="HAS CHANGED") as changed:
        check_host_key(CONFIG, KEY, [other])
    assert "/k, line 7" in changed.value.message and "ssh-keygen -R login.example.org" in changed.value.cure
    with pytest.raises(SshFailed, match="is not known") as unknown:
        check_host_key(CONFIG, KEY, [])
    assert "ssh-keyscan -t ed25519 login.example.org >> /home/ada/.ssh/known_hosts" in unknown.value.cure
    with pytest.raises(SshFailed, match="is revoked"):
        check_host_key(CONFIG, KEY, [KnownKey(KEY, "/k", 1), KnownKey(KEY, "/k", 2, "@revoked")])
    assert {unknown.value.exit_code, changed.value.exit_code} == {77}


def test_at_login_quotes_command_for_any_shell() -> None:
    words = ["ffdl", "exec", "it's", "$(id)", "a b"]
    outer = shlex.split(at_login(words))
    assert outer[:3] == ["exec", "/bin/sh", "-c"] and shlex.split(outer[4]) == ["exec", *words]


def test_ssh_config_reader_uses_default_paths_without_configuration(tmp_path: Path) -> None:
    found = interpret(Destination("login"), {}, {"HOME": str(tmp_path)})
    assert found.known_hosts == (f"{tmp_path}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    assert f"{tmp_path}/.ssh/id_ed25519" in found.identity_files and found.port == 22


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (CONFIG, "ssh ada@login"),
        (replace(CONFIG, port=2222), "ssh -p 2222 ada@login"),
        (replace(CONFIG, port=2222, config_file="/tmp/my site"), "ssh -F '/tmp/my site' -p 2222 ada@login"),
    ],
)
def test_host_config_command_includes_port_and_config_file(config: HostConfig, command: str) -> None:
    assert config.command == command


def test_ssh_config_reader_keeps_config_file_from_environment() -> None:
    environ = {"HOME": "/home/ada", "FFDL_SSH_CONFIG": "/tmp/site"}
    assert interpret(Destination("login", "ada"), {}, environ).config_file == "/tmp/site"
