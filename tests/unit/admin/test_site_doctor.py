"""The checks of a site's service: a real hub, sockets and certificates."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.admin import site_doctor
from ffdl_batch.admin.site_doctor import examine_site
from ffdl_batch.domain.examination import Item, Verdict
from tests.unit.hub.conftest import serving_hub

SITE = """\
[spawner]
run_dir = "{place}"
tenants = {{vision = 70001}}
[hub]
socket = "{place}/hub.sock"
certificate = "{place}/cert.pem"
key = "{place}/key.pem"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site.toml").write_text(SITE.format(place=tmp_path))
    monkeypatch.setattr(site_doctor, "SANDBOXES", (tmp_path / "ffdl-tenant-.service.d",))
    monkeypatch.setattr(site_doctor.sys, "executable", f"{tmp_path}/python")  # type: ignore[attr-defined]
    return tmp_path


@pytest.fixture
def spawner(place: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(place / "spawner.sock"))
        listening.listen()
        yield


def write_certificate(place: Path, days: int) -> None:
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=hub"
    argv = ["openssl", *kind.split(), "-days", str(days), "-keyout", f"{place}/key.pem", "-out", f"{place}/cert.pem"]
    subprocess.run(argv, check=True, capture_output=True)


def items(place: Path) -> dict[str, Item]:
    return {item.about: item for item in examine_site(place / "site.toml")}


def verdicts(place: Path) -> dict[str, str]:
    return {about: item.verdict.value for about, item in items(place).items()}


@pytest.mark.usefixtures("spawner")
def test_service_in_order_has_nothing_wrong(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_certificate(place, 100)
    (place / "ffdl-tenant-.service.d").mkdir()
    (place / "ffdl-tenant-.service.d/10.conf").touch()
    monkeypatch.setattr(site_doctor.os, "geteuid", lambda: 1000)  # type: ignore[attr-defined]
    with serving_hub(place):
        found = verdicts(place)
    assert found == {
        "site": "ok", "spawner": "ok", "tenants": "ok", "hub": "ok", "certificate": "ok", "listing": "note"
    }  # fmt: skip


def test_service_that_does_not_run_is_wrong_with_unit_to_look_at(place: Path) -> None:
    found = items(place)
    assert {item.verdict for about, item in found.items() if about != "site"} == {Verdict.WRONG}
    assert "systemctl status ffdl-spawner" in found["spawner"].text
    assert "systemctl status ffdl-hub" in found["hub"].text
    assert "slurm-configs/systemd/ffdl-tenant-.service.d" in found["tenants"].text
    assert "cannot be read" in found["certificate"].text


@pytest.mark.parametrize(("days", "verdict"), [(5, Verdict.NOTE), (-1, Verdict.WRONG)])
def test_certificate_is_noted_before_its_end_and_wrong_after_it(place: Path, days: int, verdict: Verdict) -> None:
    write_certificate(place, max(days, 1))
    if days < 0:
        pem = f"{place}/cert.pem"
        expired = ["openssl", "x509", "-in", pem, "-signkey", f"{place}/key.pem", "-days", "-1", "-out", pem]
        subprocess.run(expired, check=True, capture_output=True)
    found = items(place)["certificate"]
    assert (found.verdict, "systemctl reload ffdl-hub" in found.text) == (verdict, True), found


def test_listing_is_checked_as_account_of_hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = place / "ffdl-hub"
    program.write_text('#!/bin/sh\necho "ffdl-hub: $(id -un) $* sees nothing" >&2; exit 1\n')
    program.chmod(0o755)
    for directory in (place, *place.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    text = (place / "site.toml").read_text().replace("[spawner]\n", '[spawner]\nhub_user = "nobody"\n')
    (place / "site.toml").write_text(text)
    found = items(place)["listing"]
    assert (found.verdict, found.text) == (Verdict.WRONG, "nobody --check sees nothing"), found


@pytest.mark.parametrize("text", [None, "", "backend = 'slurm'\n"])
def test_host_without_service_has_no_items(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "site.toml").write_text(text)
    assert list(examine_site(tmp_path / "site.toml")) == []


def test_site_file_that_others_may_write_is_wrong(place: Path) -> None:
    (place / "site.toml").chmod(0o666)
    assert "must be owned by root and writable only by root" in items(place)["site"].text
    (place / "site.toml").write_text("[")
    (found,) = examine_site(place / "site.toml")
    assert (found.verdict, "cannot be read" in found.text) == (Verdict.WRONG, True)


def test_unknown_operators_are_wrong(place: Path) -> None:
    text = (place / "site.toml").read_text() + 'operators = ["root", "opr"]\nauditors = ["@root", "@auditing"]\n'
    (place / "site.toml").write_text(text)
    found = items(place)["roles"]
    assert (found.verdict, found.text.endswith(": opr, @auditing")) == (Verdict.WRONG, True), found
