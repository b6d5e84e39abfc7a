"""Credentials of munge: what its programs get, and what of their output counts. Real ones are in the site's tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ffdl_batch.host.munge import Decoded, MungeFailed, decode, encode

OUTPUT = """\
STATUS:           Success (0)
ENCODE_HOST:      login2 (10.0.0.7)
ENCODE_TIME:      2026-11-29 12:00:00 +0000 (1795953600)
DECODE_TIME:      2026-11-29 12:00:01 +0000 (1795953601)
TTL:              60
CIPHER:           aes128 (4)
MAC:              sha256 (5)
ZIP:              none (0)
UID:              a(1) b (4294967290)
GID:              users (100)
UID_RESTRICTION:  ffdl (7000)
LENGTH:           9

UID:  1

x"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put(place: Path, name: str, script: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)


def test_encode_restricts_reader_and_lifetime(programs: Path) -> None:
    put(programs, "munge", f'echo "$@" > {programs}/argv; cat > {programs}/in; echo MUNGE:AAAA:')
    assert encode(b"a\0b", reader=7000) == "MUNGE:AAAA:"
    assert (programs / "argv").read_text().split() == ["--restrict-uid=7000", "--ttl=60"]
    assert (programs / "in").read_bytes() == b"a\0b"


@pytest.mark.parametrize("restricted", [True, False])
def test_decode_reads_numbers_of_metadata_and_whole_payload(programs: Path, restricted: bool) -> None:
    text = OUTPUT if restricted else re.sub("UID_RESTRICTION.*\n", "", OUTPUT)
    (programs / "out").write_text(text)
    put(programs, "unmunge", f"cat > {programs}/in; cat {programs}/out")
    assert decode("MUNGE:AwQF+/=:") == Decoded(4294967290, 7000 if restricted else None, 60, b"UID:  1\n\nx")
    assert (programs / "in").read_text() == "MUNGE:AwQF+/=:"


@pytest.mark.parametrize(
    ("credential", "script", "said"),
    [
        ("MUNGE:A:\n", "exit 9", "it is not a munge credential"),
        ("MUNGE:" + "A" * 9000 + ":", "exit 9", "it is not a munge credential"),
        ("MUNGE:é:", "exit 9", "it is not a munge credential"),
        ("MUNGE:A:", 'echo "unmunge: Error: Replayed credential" >&2; exit 17', "^Replayed credential$"),
        ("MUNGE:A:", "exit 15", "exit status 15"),
        ("MUNGE:A:", "printf 'STATUS: Expired (15)\\nUID: 1\\nTTL: 1\\n\\nx'", "cannot be read"),
        ("MUNGE:A:", "printf 'STATUS: Success (0)\\nTTL: 1\\n\\nx'", "cannot be read"),
        ("MUNGE:A:", "printf 'STATUS: Success (0)\\nUID: 1\\nTTL: 1\\n'", "cannot be read"),
    ],
)
def test_decode_refuses_invalid_credential(programs: Path, credential: str, script: str, said: str) -> None:
    put(programs, "unmunge", f"cat >/dev/null; {script}")
    with pytest.raises(MungeFailed, match=said):
        decode(credential)


def test_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MungeFailed, match=r"munge cannot be run: .*No such file"):
        encode(b"x", reader=1)
