"""Limits connections, in total and by user, and logs once that a limit is reached or the machine refuses them.

Without a limit, idle clients would use all file descriptors, and the loops could not open files.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import time
from collections.abc import Mapping
from typing import Any

from ffdl_batch.daemon.replies import raw_problem_reply
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.services.os_errors import explain

log = logging.getLogger(__name__)

KEPT = 192
"""Descriptors that are not for connections: files, pipes of commands, the database."""
SAY_AGAIN_S = 60.0
LINGER_S = 1.0
"""How long one that is turned away may take to read why."""
_RETRY = "Exception in callback BaseSelectorEventLoop._start_serving"


def most_connections(descriptors: int) -> int:
    """How many connections there may be where a process may have so many descriptors."""
    return descriptors - min(KEPT, descriptors // 2)


class Crowd:
    """Holds the limits of connections, and logs refusals at a limited rate."""

    def __init__(self) -> None:
        self.most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.most_of_user = self.most - self.most // 4
        self._said_at = float("-inf")

    def refusal(self, connections: int, of_user: int, uid: int) -> str:
        """Return why user `uid`, who has `of_user` of the open connections, is refused another one; "" if it is
        allowed."""
        if connections >= self.most:
            reason = f"the daemon has {self.most} open connections, which is its limit"
        elif of_user >= self.most_of_user:
            reason = f"user {uid} has {of_user} open connections to the daemon, which is the limit of a user"
        else:
            return ""
        self._say(reason, OSError(errno.EMFILE, ""))
        return reason

    def turn_away(self, transport: asyncio.Transport, reason: str) -> None:
        """Send `reason` as the answer before any request, and close the connection."""
        cure = "try again; end some of its clients, or raise its limit of open files (ulimit -n, LimitNOFILE=)"
        transport.write(raw_problem_reply(Problem("S210", reason, ExitCode.TRY_AGAIN, cure), 503))
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def on_exception(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """asyncio's word about what nobody handled.

        It tells of one accept that found no descriptor as often as the backlog is long, and tries as often again.
        """
        error = context.get("exception")
        if isinstance(error, MemoryError):
            gc.collect()  # what a request that failed had read lies in cycles with its traceback
            self._say("a connection was dropped", OSError(errno.ENOMEM, ""))
            return
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self._say("nobody can be let in now, and it is tried again every second", error)
        elif not (isinstance(error, ValueError) and str(context.get("message", "")).startswith(_RETRY)):
            loop.default_exception_handler(dict(context))  # the other is such a try, after the socket was closed

    def _say(self, what: str, error: OSError) -> None:
        if time.monotonic() - self._said_at >= SAY_AGAIN_S:
            self._said_at = time.monotonic()
            log.warning("%s: %s", what, explain(error, ""))
