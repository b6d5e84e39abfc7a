"""``python -m tests.fakes.kubernetes KNOBS.json``: print two ports in one line, serve until standard input ends."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.fakes.kubernetes.cluster import Cluster, Control, Knobs
from tests.fakes.kubernetes.web import WebServer


async def _serve(knobs: Knobs) -> None:
    cluster = Cluster(knobs)
    control = WebServer(Control(cluster).answer)
    await cluster.start()
    await control.start()
    print(json.dumps({"port": cluster.web.port, "control": control.port}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    await control.stop()
    await cluster.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Knobs(**json.loads(Path(sys.argv[1]).read_text()))))
