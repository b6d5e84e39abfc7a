"""What channels of a connection need that the library has no call for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko


def lost_errors() -> tuple[type[Exception], ...]:
    """What is raised where a channel, or its connection, ends before its time."""
    import paramiko

    return (paramiko.SSHException, EOFError, OSError)


def interrupt(channel: paramiko.Channel) -> None:
    """Send INT to the command (RFC 4254, 6.9); a server may leave it out."""
    from paramiko.common import cMSG_CHANNEL_REQUEST
    from paramiko.message import Message

    message = Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string("INT")
    channel.get_transport()._send_user_message(message)
