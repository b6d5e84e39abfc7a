"""The command at the other end of this helper's standard streams."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Tuple

from ffdl_batch.domain.launch.attach_protocol import EXIT, PING, REFUSED, SILENCE_S, FrameReader, encode_frame


class PeerGone(Exception):
    """Nobody is there any more."""


class Peer:
    """`source` and `target` are descriptors."""

    def __init__(self, source: int = 0, target: int = 1) -> None:
        self.source, self._target = source, target
        self._reader = FrameReader()
        self._heard_at = time.monotonic()
        self._kept = []  # type: List[Tuple[str, bytes]]

    @property
    def has_frames(self) -> bool:
        """Whether some came that :meth:`frames` is to give again."""
        return bool(self._kept)

    def keep(self, frames: List[Tuple[str, bytes]]) -> None:
        """Give these again the next time."""
        self._kept = frames

    def frames(self) -> List[Tuple[str, bytes]]:
        """What has come, without pings; waits where nothing has. Raises PeerGone, FrameError."""
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        data = os.read(self.source, 1 << 16)
        if not data:
            raise PeerGone
        self._heard_at = time.monotonic()
        return [frame for frame in self._reader.feed(data) if frame[0] != PING]

    def check(self) -> None:
        """Raises PeerGone where nothing was heard for too long."""
        if time.monotonic() - self._heard_at > SILENCE_S:
            raise PeerGone

    def say(self, kind: str, payload: bytes = b"") -> None:
        """Send a frame. Raises PeerGone."""
        data = encode_frame(kind, payload)
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError as error:
            raise PeerGone from error

    def tell(self, kind: str, fields: Dict[str, Any]) -> None:
        """Send a frame that holds an object."""
        self.say(kind, json.dumps(fields).encode("ascii"))

    def refuse(self, message: str) -> None:
        """Nothing was done, and why."""
        self.say(REFUSED, message.encode("utf-8", "replace"))

    def end(self, status: int) -> None:
        """All is done."""
        self.tell(EXIT, {"status": status})
