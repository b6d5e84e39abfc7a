"""Speak with the command that started this process, over its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from ffdl_batch.domain.launch.attach_protocol import (
    BEGIN,
    EXIT,
    OUTPUT,
    PIECE_BYTES,
    PING,
    REFUSED,
    RUN,
    FrameReader,
    encode_frame,
)

EXIT_REFUSED = 69
READ_BYTES = 1 << 15


class OwnerGone(Exception):
    """The command has gone."""


class Own:
    """The command's streams, which are pipes. `given` is the input before the helper was started."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()
        self.given = b""

    @classmethod
    async def open(cls) -> Own:
        """Open this process's standard streams."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(1, "wb", 0)
        )
        transport.set_write_buffer_limits(0)  # drain() waits for all of it, because the end of the loop drops the rest
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def read(self) -> bytes:
        """Return input of the command; b"" if it has gone."""
        return await self._reader.read(READ_BYTES)

    async def frames(self) -> list[str]:
        """Return the kinds of the next frames, without pings. Raises OwnerGone, FrameError."""
        data = await self.read()
        if not data:
            raise OwnerGone
        return [kind for kind, _ in self._frames.feed(data) if kind != PING]

    async def await_begin(self) -> str:
        """Return what the command wants. Its input until then is in `given`. Raises OwnerGone, FrameError."""
        while True:
            data = await self.read()
            if not data:
                raise OwnerGone
            self.given += data
            for kind, payload in self._frames.feed(data):
                if kind == BEGIN:
                    return str(json.loads(payload).get("do", RUN))

    async def write(self, data: bytes) -> None:
        """Write bytes of the helper, and wait until the pipe has taken them. Raises OwnerGone."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise OwnerGone from error

    async def send_object(self, kind: str, fields: dict[str, Any]) -> None:
        """Send a frame with an object, as the helper does."""
        await self.write(encode_frame(kind, json.dumps(fields).encode("ascii")))

    async def print(self, text: str) -> None:
        """Send a text as output, as the helper does."""
        data = text.encode("utf-8", "replace")
        for at in range(0, len(data), PIECE_BYTES):
            await self.write(encode_frame(OUTPUT, data[at : at + PIECE_BYTES]))

    async def end(self, status: int) -> int:
        """Report success, and return this process's exit status."""
        await self.send_object(EXIT, {"status": status})
        return 0

    async def refuse(self, message: str, status: int = EXIT_REFUSED) -> int:
        """Report why the command fails. Return `status`, the exit status of this process."""
        await self.write(encode_frame(REFUSED, message.encode("utf-8", "replace")))
        return status
