"""The stores: a real S3 server behind a proxy that fails by rules, in the cluster's network, and a quick one beside it
for very many files; and a plain client.

As a program it runs in the network of the nodes' bridge and takes orders, one JSON value a line. The client goes past
the proxy.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.cluster.rig import Cluster
from tests.cluster.rig.command import run
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.s3_server import QuickServer, S3Server
from tests.fakes.swift_server import Stored, Swift, swift_server
from tests.proof.data.values import QUICK_RESULTS, QUICK_SETS, RESULTS, SETS

ADDRESS = "10.77.0.253"
"""Beside those of the nodes and of the gateway that the proof of isolation makes."""
ROOT = Path(__file__).resolve().parents[3]
_PLAIN = re.compile(r"[A-Za-z0-9/_-]+")


class Store:
    """A context. `directory` is where files are handed over; `endpoint` is what nodes reach, the proxy."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory, self._count = cluster, directory, 0
        self.endpoint = self.swift = self.quick = ""
        """What manifests have as `auth_url`, of S3's server, of Swift's, and of the quick one."""

    def __enter__(self) -> Store:
        beyond = self._cluster.fabric.bridge_netns
        run(["ip", "-n", beyond, "link", "set", "lo", "up"])
        run(["ip", "-n", beyond, "addr", "replace", f"{ADDRESS}/24", "dev", "br0"])
        argv = ["ip", "netns", "exec", beyond, sys.executable, "-m", "tests.proof.data.store", str(self._directory)]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            self.endpoint, self.swift, self.quick = map(str, self._answer())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._cluster.kill(self._process)
        beyond = self._cluster.fabric.bridge_netns
        run(["ip", "-n", beyond, "addr", "del", f"{ADDRESS}/24", "dev", "br0"], check=False)

    def put(self, bucket: str, prefix: str, files: Mapping[str, bytes]) -> None:
        """Store objects."""
        self._ask("put", bucket=bucket, files=self._hand_over(prefix, files))

    def make(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """A bucket with objects."""
        self._ask("make", bucket=bucket)
        for prefix, data in files.items():
            self.put(bucket, prefix, {"0": data})

    def drop(self, bucket: str) -> None:
        """The bucket is gone, with its objects."""
        self._ask("drop", bucket=bucket)

    def put_in_swift(self, user: str, password: str, container: str, prefix: str, files: Mapping[str, bytes]) -> None:
        """Have the other server let in this user alone, and hold objects."""
        objects = self._hand_over(prefix, files)
        self._ask("put_in_swift", user=user, password=password, container=container, files=objects)

    def fetch(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """All objects below a prefix."""
        paths = self._ask("fetch", bucket=bucket, prefix=prefix, directory=str(self._place()))
        return {key: Path(path).read_bytes() for key, path in paths.items()}

    def alter(self, bucket: str, key: str) -> None:
        """Change one byte of an object."""
        self._ask("alter", bucket=bucket, key=key)

    def rules(self, *rules: Rule) -> None:
        """What fails from now on, instead of what did."""
        self._ask("rules", rules=[vars(rule) for rule in rules])

    def met(self) -> list[int]:
        """How often each rule was."""
        return [int(times) for times in self._ask("met")]

    def given(self) -> Counter[str]:
        """Bytes that went to the nodes, by path."""
        return Counter(self._ask("given"))

    def _hand_over(self, prefix: str, files: Mapping[str, bytes]) -> dict[str, str]:
        """Keys, and where their contents lie."""
        place, names = self._place(), {}
        for number, (name, data) in enumerate(files.items()):
            (place / str(number)).write_bytes(data)
            names[f"{prefix}/{name}"] = str(place / str(number))
        return names

    def _place(self) -> Path:
        self._count += 1
        place = self._directory / f"handed-{self._count}"
        place.mkdir()
        return place

    def _ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the store ended with {self._process.wait()}")
        return json.loads(line)


class _Keeper:
    """The other end."""

    def __init__(self, directory: Path, swift: Swift) -> None:
        self.swift = swift
        self.server = S3Server(directory / "server.log")
        self.proxy = FaultProxy(self.server.port, ADDRESS)
        self.quick = QuickServer(directory / "quick.log", ADDRESS)
        for bucket in (SETS, RESULTS, QUICK_SETS, QUICK_RESULTS):
            self._of(bucket).client.create_bucket(Bucket=bucket)

    def _of(self, bucket: str) -> S3Server:
        return self.quick if bucket in (QUICK_SETS, QUICK_RESULTS) else self.server

    def stop(self) -> None:
        """End them."""
        self.proxy.stop()
        self.server.stop()
        self.quick.stop()

    def put(self, bucket: str, files: Mapping[str, str]) -> None:
        plain = {key: path for key, path in files.items() if _PLAIN.fullmatch(key)}
        self._of(bucket).put_many(bucket, ((key, Path(path).read_bytes()) for key, path in plain.items()))
        for key, path in files.items() - plain.items():
            self._of(bucket).client.put_object(Bucket=bucket, Key=key, Body=Path(path).read_bytes())

    def make(self, bucket: str) -> None:
        self.server.client.create_bucket(Bucket=bucket)

    def drop(self, bucket: str) -> None:
        for one in self.server.client.list_objects_v2(Bucket=bucket).get("Contents", []):
            self.server.client.delete_object(Bucket=bucket, Key=one["Key"])
        self.server.client.delete_bucket(Bucket=bucket)

    def put_in_swift(self, user: str, password: str, container: str, files: Mapping[str, str]) -> None:
        self.swift.user, self.swift.password = user, password
        objects = self.swift.containers.setdefault(container, {})
        objects |= {key: Stored(Path(path).read_bytes()) for key, path in files.items()}

    def fetch(self, bucket: str, prefix: str, directory: str) -> dict[str, str]:
        pages = self._of(bucket).client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        paths = {}
        for number, one in enumerate(one for page in pages for one in page.get("Contents", [])):
            path = Path(directory, str(number))
            path.write_bytes(self._read(bucket, one["Key"]))
            paths[one["Key"]] = str(path)
        return paths

    def alter(self, bucket: str, key: str) -> None:
        data = bytearray(self._read(bucket, key))
        data[len(data) // 2] ^= 1
        self._of(bucket).client.put_object(Bucket=bucket, Key=key, Body=bytes(data))

    def rules(self, rules: Sequence[Mapping[str, Any]]) -> None:
        with self.proxy.lock:
            self.proxy.rules = [Rule(**rule) for rule in rules]

    def met(self) -> list[int]:
        return [rule.done for rule in self.proxy.rules]

    def given(self) -> dict[str, int]:
        with self.proxy.lock:
            return {unquote(path): size for path, size in self.proxy.given.items()}

    def _read(self, bucket: str, key: str) -> bytes:
        with self._of(bucket).client.get_object(Bucket=bucket, Key=key)["Body"] as body:
            return bytes(body.read())


def _serve(directory: Path) -> None:
    with swift_server(ADDRESS) as swift:
        keeper = _Keeper(directory, swift)
        try:
            ends = [keeper.proxy.endpoint, f"http://{ADDRESS}:{swift.port}/auth/v1.0", keeper.quick.endpoint]
            print(json.dumps(ends), flush=True)
            for line in sys.stdin:
                order = json.loads(line)
                print(json.dumps(getattr(keeper, order.pop("what"))(**order)), flush=True)
        finally:
            keeper.stop()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
