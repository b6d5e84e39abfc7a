"""What was reported is not reported again, whatever becomes visible late; and what ends with which code."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.cli.commands.report.faults import status_of, subject_of
from ffdl_batch.cli.commands.report.faults_document import (
    LAG_S,
    Reported,
    locked,
    new_rows,
    read_reported,
    reported_by,
    write_reported,
)
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.exit_handling import Stop
from ffdl_batch.notify.mail import read_address, read_login, read_relay
from tests.unit.cli.programs import FFDL, run
from tests.unit.client.fake_daemon import FakeDaemon

NOW = 10_000.0


def row(noticed_at: float, job: str = "a", kind: str = "user.exit") -> IncidentRow:
    origin = kind.partition(".")[0]
    return IncidentRow(job, 1, "end-0", kind, origin, "t", "c", noticed_at, noticed_at, "C201", "m")


def report(*rows: IncidentRow, as_of: float = NOW, until: float | None = None) -> FaultsReport:
    return FaultsReport(0.0, as_of if until is None else until, as_of, 0.0, rows=rows)


def test_new_rows_returns_all_rows_without_state_and_none_after_it() -> None:
    first = report(row(NOW - 5000), row(NOW - 10, "b"))
    assert len(new_rows(first, None)) == 2
    reported = reported_by(first, None)
    assert reported == Reported(NOW, frozenset({"b/1/end-0"}))
    later = replace(first, as_of=NOW + 60, until=NOW + 60)
    assert new_rows(later, reported) == ()
    assert reported_by(later, reported).keys == {"b/1/end-0"}


def test_new_rows_includes_incident_that_becomes_visible_late_until_lag_is_over() -> None:
    known, late = row(NOW - 10), row(NOW - 20, "late")
    reported = reported_by(report(known), None)
    assert new_rows(report(known, late, as_of=NOW + 60), reported) == (late,)
    assert reported_by(report(known, as_of=NOW + 2 * LAG_S), reported).keys == frozenset()


def test_reported_state_is_unchanged_by_report_of_past_period() -> None:
    reported = Reported(NOW, frozenset({"x/1/end-0"}))
    assert reported_by(report(as_of=NOW + 60, until=NOW - 5000), reported) == reported


def test_reported_state_file_is_read_back_and_never_partial(tmp_path: Path) -> None:
    path, reported = tmp_path / "state", Reported(NOW, frozenset({"a/1/end-0", "b/2/end-1"}))
    assert read_reported(str(path)) is None
    write_reported(str(path), reported)
    assert read_reported(str(path)) == reported
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    with pytest.raises(Stop, match="will have the same incidents") as raised:
        write_reported(str(path), Reported(NOW))
    assert raised.value.code == ExitCode.TRY_AGAIN
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 9, "noticed_at": 1, "keys": []}', b"\xff"]
)
def test_damaged_reported_state_file_is_rejected_and_kept(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(damage)
    with pytest.raises(Stop, match=f"{path}.*remove it") as raised:
        read_reported(str(path))
    assert (raised.value.code, path.read_bytes()) == (ExitCode.BAD_MANIFEST, damage)


def test_report_lock_times_out_while_another_report_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.cli.commands.report.faults_document.LOCK_S", 0.0)
    path = str(tmp_path / "state")
    with locked(path), pytest.raises(Stop, match="another report") as raised, locked(path):
        raise AssertionError("two at once")
    assert raised.value.code == ExitCode.TRY_AGAIN
    with locked(path):
        assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("kinds", "code", "subject"),
    [
        ((), 0, "[ffdl] faults: nothing new"),
        (("user.exit", "data.missing"), 1, "[ffdl] faults: 2 new, all of users"),
        (("user.exit", "node.gpu"), 2, "[ffdl] faults: 2 new, 1 not of users"),
        (("scheduler.preempted",), 2, "[ffdl] faults: 1 new, 1 not of users"),
        (("container.runtime",), 2, "[ffdl] faults: 1 new, 1 not of users"),
        (("platform.unknown",), 2, "[ffdl] faults: 1 new, 1 not of users"),
    ],
)
def test_exit_code_and_mail_subject_follow_kinds_of_new_incidents(
    kinds: tuple[str, ...], code: int, subject: str
) -> None:
    rows = [row(NOW, str(number), kind) for number, kind in enumerate(kinds)]
    assert (status_of(rows), subject_of(rows)) == (code, subject)


@pytest.mark.parametrize(
    ("text", "read"),
    [("localhost", ("localhost", 25)), ("mail.example.org:587", ("mail.example.org", 587)), ("[::1]:25", ("::1", 25))],
)
def test_read_relay_parses_host_and_port(text: str, read: tuple[str, int]) -> None:
    assert read_relay(text) == read


BAD_RELAYS = ("", "a:0", "a:65536", "a b", "http://a", ":25", "a\n")
BAD_ADDRESSES = ("", "a", "a@b@c", "a@b\nBcc: c@d", "<a@b>", "a b@c", "ä@b", "a@b,c@d")


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [*((read_relay, text, "not a mail relay") for text in BAD_RELAYS),
     *((read_address, text, "not a mail address") for text in BAD_ADDRESSES)],
)  # fmt: skip
def test_read_relay_and_address_reject_invalid_text(read: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


def test_read_login_requires_two_lines_in_private_file_and_hides_password(tmp_path: Path) -> None:
    path = tmp_path / "login"
    path.touch(mode=0o600)
    for text in ("", "user\n", "user\n\n", "user\npassword\nmore\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="two lines"):
            read_login(path)
    path.write_text("ada\ns3cret\n")
    assert "s3cret" not in repr(read_login(path))
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_login(path)


@pytest.mark.parametrize("own_only", [True, False])
@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_report_of_all_users_says_whose_jobs_it_covers_on_stderr_and_in_document(
    daemon: FakeDaemon, own_only: bool, form: str
) -> None:
    daemon.reports["faults"] = {"faults": to_plain(replace(report(row(NOW)), own_only=own_only))}
    done = run(FFDL, "report", "faults", "--all", "--format", form, daemon=daemon)
    warning = "ffdl: warning: the report covers your own jobs only: a personal daemon has no jobs of other users\n"
    assert done.stderr == (warning if own_only else "")
    assert ("your own jobs only." in done.stdout, "jobs of all users." in done.stdout) == (own_only, not own_only)
    quiet = run(FFDL, "report", "faults", "--all", "--quiet", "--format", form, daemon=daemon)
    assert (quiet.stderr, quiet.stdout) == ("", done.stdout)
