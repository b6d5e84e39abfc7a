"""``python -m tests.fakes.kubernetes KNOBS.json``: serve until standard input ends. One line says the two ports."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.fakes.kubernetes.cluster import Cluster, Knobs
from tests.fakes.kubernetes.control import Control
from tests.fakes.kubernetes.web import WebServer


async def _serve(knobs: Knobs) -> None:
    cluster = Cluster(knobs)
    control = WebServer(Control(cluster).answer)
    await cluster.start()
    await control.start()
    print(json.dumps({"port": cluster.web.port, "control": control.port}), flush=True)
    await _input_ends()
    await control.stop()
    await cluster.stop()


async def _input_ends() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    asyncio.run(_serve(Knobs(**json.loads(Path(sys.argv[1]).read_text()))))
