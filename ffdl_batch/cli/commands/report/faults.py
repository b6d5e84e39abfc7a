"""``ffdl report faults``: report what failed, and send the report by mail."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client, site_option
from ffdl_batch.cli.options.output import FORMATS, check_written, chosen_format, json_option, open_output
from ffdl_batch.cli.render.formatting import print_json, read_moment
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.cli.commands.report.faults_document import Reported
    from ffdl_batch.domain.incidents.incident import IncidentRow
    from ffdl_batch.domain.incidents.report import FaultsReport
    from ffdl_batch.notify.mail import Relay

USERS_ONLY, OURS = 1, 2
"""Exit codes for monitoring, besides 0 for nothing new."""
_USERS = frozenset({"user", "data"})
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Mailing:
    """Recipients, sender and relay of the mail."""

    recipients: tuple[str, ...]
    sender: str
    relay: Relay


def _check_mail(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """Read mail addresses. Callback of an option."""
    from ffdl_batch.notify.mail import read_address

    try:
        return tuple(read_address(one.strip()) for text in value for one in text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _check_sender(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else _check_mail(context, parameter, (value,))[0]


@click.command(
    epilog="Example: ffdl report faults --since 24h --quiet --state-file /var/lib/ffdl/faults.state "
    "--mail ops@example.org --smtp mail.example.org",
)
@click.option("-S", "--since", metavar="MOMENT", callback=read_moment,
              help="Start of the period: 7d, 2026-11-01, yesterday.  [default: 24h]")  # fmt: skip
@click.option("--until", metavar="MOMENT", callback=read_moment, help="End of the period.  [default: now]")
@click.option("-a", "--all-users", "--all", "all_users", is_flag=True,
              help="Report jobs of all users; for administrators. A personal daemon has only your own.")  # fmt: skip
@site_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="Format. html needs no other file; csv and json have all new incidents.")  # fmt: skip
@json_option("Same as --format json.")
@click.option("-o", "--output", metavar="FILE", callback=check_written, help="Write the report to this file.")
@click.option("-q", "--quiet", is_flag=True, help="Print, write and send nothing if nothing is new.")
@click.option("--state-file", metavar="FILE", callback=check_written,
              help="Record of reported incidents, which are not reported again. Written after delivery.")  # fmt: skip
@click.option(
    "--mail",
    metavar="ADDRESS",
    multiple=True,
    callback=_check_mail,
    help="Send the report to this address; repeatable.",
)
@click.option("--smtp", metavar="HOST[:PORT]", default="localhost", show_default=True,
              help="Mail relay. STARTTLS is used if the relay offers it, TLS on port 465.")  # fmt: skip
@click.option("--from", "sender", metavar="ADDRESS", callback=_check_sender,
              help="Sender.  [default: your name at this host]")  # fmt: skip
@click.option("--smtp-login", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="File with user and password for the relay, a line each; its mode must be 0600.")  # fmt: skip
@click.option("--smtp-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="CA certificates for the relay.  [default: the system's]")  # fmt: skip
def faults(  # noqa: PLR0913  (one parameter per option)
    *,
    since: float | None,
    until: float | None,
    all_users: bool,
    site: bool,
    form: str,
    as_json: bool,
    output: str | None,
    quiet: bool,
    state_file: str | None,
    mail: tuple[str, ...],
    smtp: str,
    sender: str | None,
    smtp_login: str | None,
    smtp_ca: str | None,
) -> int:
    """Report what failed: each abnormal end of an attempt is an incident with its cause and evidence. The report
    compares them with the period before, and lists the nodes, users and causes with most incidents, and the GPU-hours
    lost since the last checkpoints.

    Exit codes: 0 nothing new; 1 new incidents, all of users' code and data; 2 other new incidents; 75 unknown, because
    the daemon or the mail relay does not answer. Errors of the command line also have 2, with a message and no report.
    """
    form = chosen_format(form, as_json=as_json)
    if site and all_users:
        raise click.UsageError("--site and --all-users are mutually exclusive")
    mailing = _mailing(mail, sender, smtp, smtp_login, smtp_ca) if mail else None
    now = time.time()
    begin = now - _DAY_S if since is None else since
    if begin >= now:
        raise click.UsageError("the period is empty: --since must be before now")
    if until is not None and until <= begin:
        raise click.UsageError("the period is empty: --until must be after --since")
    with ExitStack() as stack:
        if state_file is not None:
            from ffdl_batch.cli.commands.report.faults_document import locked

            stack.enter_context(locked(state_file))
        asked = _Asked(begin, until, state_file, all_users=all_users, is_site=site)
        return _report_separately(asked, _Form(form, output, mailing, quiet=quiet))


@dataclass(frozen=True, slots=True)
class _Asked:
    since: float
    until: float | None
    state_file: str | None
    all_users: bool
    is_site: bool


@dataclass(frozen=True, slots=True)
class _Form:
    name: str
    output: str | None
    mailing: Mailing | None
    quiet: bool


def _report_separately(asked: _Asked, form: _Form) -> int:
    """Run the report. Errors get exit codes that differ from those of incidents, for monitoring."""
    from ffdl_batch.client import ClientError

    try:
        return _report(asked, form)
    except ClientError as error:
        if error.problem.exit_code not in (USERS_ONLY, OURS):
            raise
        raise Stop(ExitCode.TRY_AGAIN, str(error)) from error
    except Stop as error:
        if error.code not in (USERS_ONLY, OURS):
            raise
        raise Stop(ExitCode.TRY_AGAIN, str(error)) from error


def _report(asked: _Asked, form: _Form) -> int:
    from ffdl_batch.cli.commands.report.faults_document import new_rows, read_reported, reported_by, write_reported

    reported = read_reported(asked.state_file) if asked.state_file is not None else None
    after = None if reported is None or reported.is_empty else reported.rows_after
    with open_client(quiet=form.quiet, is_site=asked.is_site) as client:
        found = client.reports.faults(asked.since, asked.until, rows_after=after, all_users=asked.all_users)
    if asked.all_users and found.own_only and not form.quiet:
        complain("warning: the report covers your own jobs only: a personal daemon has no jobs of other users")
    new = new_rows(found, reported)
    if new or not form.quiet:
        _deliver(found, new, form)
        _mail(found, reported, asked.state_file, form)
    if asked.state_file is not None:
        write_reported(asked.state_file, reported_by(found, reported))
    return status_of(new)


def status_of(new: Sequence[IncidentRow]) -> int:
    """Return the exit code for monitoring."""
    if not new:
        return ExitCode.OK
    return USERS_ONLY if all(row.origin in _USERS for row in new) else OURS


def _deliver(report: FaultsReport, new: Sequence[IncidentRow], form: _Form) -> None:
    """Write the report to its file, or to standard output if there is neither a file nor a mail."""
    if form.output is not None or form.mailing is None:
        with open_output(form.output or "-") as file:
            _write(report, new, form.name, file)
            file.flush()


def _mail(report: FaultsReport, reported: Reported | None, state_file: str | None, form: _Form) -> None:
    """Send each recipient the incidents that are new to them. Raises Stop if the relay refuses a recipient, and records
    which recipients were accepted."""
    from ffdl_batch.cli.commands.report.faults_document import new_rows, reported_in_part, reported_to, write_reported

    if form.mailing is None:
        return
    groups: dict[tuple[IncidentRow, ...], list[str]] = {}
    for one in form.mailing.recipients:
        groups.setdefault(new_rows(report, reported_to(reported, one)), []).append(one)
    taken: list[str] = []
    unsent: Unsent | None = None
    for rows, recipients in groups.items():
        if not rows and form.quiet:
            continue
        try:
            _send(report, rows, form, recipients)
            taken += recipients
        except Unsent as error:
            taken, unsent = [*taken, *error.taken], error
    if unsent is not None and taken and state_file is not None:
        write_reported(state_file, reported_in_part(report, reported, taken))
    if unsent is not None:
        raise unsent


def _write(report: FaultsReport, new: Sequence[IncidentRow], form: str, file: IO[str]) -> None:
    if form == "json":
        from dataclasses import replace

        print_json({"faults": replace(report, rows=tuple(new))}, file)
        return
    from ffdl_batch.cli.commands.report.faults_document import CSV_COLUMNS, csv_rows, faults_document

    if form == "csv":
        from ffdl_batch.cli.render.document import write_csv

        write_csv(file, CSV_COLUMNS, csv_rows(new))
        return
    from ffdl_batch.cli.render.document_html import write_document

    write_document(faults_document(report, new), form, file)


def _mailing(
    recipients: tuple[str, ...], sender: str | None, smtp: str, login_file: str | None, ca_file: str | None
) -> Mailing:
    from ffdl_batch.notify.mail import Login, Relay, read_login, read_relay

    try:
        host, port = read_relay(smtp)
        login: Login | None = read_login(Path(login_file)) if login_file is not None else None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise Stop(ExitCode.NO_INPUT, f"{login_file} cannot be read: {error.strerror}") from error
    return Mailing(recipients, sender or _own_address(), Relay(host, port, login, ca_file or ""))


def _own_address() -> str:
    """Return the address of the process's user. Cron may set no variable with the name."""
    import os
    import socket

    from ffdl_batch.host.users import user_name

    return f"{user_name(os.getuid())}@{socket.getfqdn()}"


class Unsent(Stop):
    """The relay did not accept the mail for all recipients. It accepted it for `taken`."""

    def __init__(self, code: int, message: str, taken: Sequence[str]) -> None:
        super().__init__(code, message)
        self.taken = tuple(taken)


def _send(report: FaultsReport, new: Sequence[IncidentRow], form: _Form, recipients: Sequence[str]) -> None:
    """Send the report as text of the mail, or as attachment if its format is not text. Raises Unsent."""
    from email.message import EmailMessage
    from email.utils import format_datetime, localtime, make_msgid

    from ffdl_batch.notify.mail import MailNotSent, send

    mailing = form.mailing
    assert mailing is not None
    message = EmailMessage()
    message["Subject"] = subject_of(new)
    message["From"], message["To"] = mailing.sender, ", ".join(recipients)
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = make_msgid(domain=mailing.sender.partition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_text(report, new, form.name if form.name in ("text", "markdown") else "text"))
    if form.name not in ("text", "markdown"):
        subtype = {"html": "html", "csv": "csv", "json": "plain"}[form.name]
        message.add_attachment(_text(report, new, form.name), subtype=subtype, filename=f"faults.{form.name}")
    try:
        send(mailing.relay, message, mailing.sender, recipients)
    except MailNotSent as error:
        code = ExitCode.TRY_AGAIN if error.may_pass else ExitCode.UNAVAILABLE
        again = "the next report has the same incidents"
        if error.taken:
            again = f"it was sent to {', '.join(error.taken)}; the next report has the same incidents for the others"
        code = ExitCode.NOT_ALLOWED if error.not_allowed else code
        raise Unsent(code, f"the report was not sent: {error}; {again}", error.taken) from error


def _text(report: FaultsReport, new: Sequence[IncidentRow], form: str) -> str:
    file = io.StringIO()
    _write(report, new, form, file)
    return file.getvalue()


def subject_of(new: Sequence[IncidentRow]) -> str:
    """Return the subject of the mail."""
    others = sum(row.origin not in _USERS for row in new)
    if not new:
        return "[ffdl] faults: nothing new"
    return f"[ffdl] faults: {len(new)} new" + (f", {others} not of users" if others else ", all of users")
