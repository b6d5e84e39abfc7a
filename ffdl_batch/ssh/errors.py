"""What goes wrong with a connection, in words for whoever asked for it."""

from __future__ import annotations

from ffdl_batch.domain.exit_codes import ExitCode


class SshFailed(Exception):
    """No connection, or none any more. `cure` is what the reader can do, `exit_code` what a command ends with."""

    def __init__(self, message: str, cure: str = "", exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.exit_code = int(exit_code)


class CommandLost(SshFailed):
    """The connection ended while a command ran: nobody knows how far it got."""
