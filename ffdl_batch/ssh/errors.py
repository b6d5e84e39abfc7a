"""The errors of connections and of commands on hosts."""

from __future__ import annotations

from ffdl_batch.domain.exit_codes import ExitCode


class SshFailed(Exception):
    """There is no connection. `cure` is what the reader can do, `exit_code` what a command exits with."""

    def __init__(self, message: str, cure: str = "", exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.exit_code = int(exit_code)


class CommandLost(SshFailed):
    """The connection ended while a command ran: it is not known how far it got."""


class ProgramMissing(SshFailed):
    """The host was reached, and its login shell does not find the program."""
