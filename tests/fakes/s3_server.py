"""A real S3 server on loopback (or where it is told): moto's, as a process of its own."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import botocore.session
from botocore.config import Config

START_S = 60
_ANYBODY = {"Authorization": "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request"}


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens; OSError where the address is not this machine's. The kernel gives it to nobody
    who takes any port: it is still free when the caller takes it."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port


class S3Server:
    """The server. It lets anybody in until :meth:`check_keys`."""

    module: ClassVar[str] = "moto.server"

    def __init__(self, log: Path, host: str = "127.0.0.1") -> None:
        self._host, self.port = host, free_port(host)
        self.endpoint = f"http://{host}:{self.port}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", self.module, "-H", host, "-p", str(self.port)],
                stdout=output,
                stderr=output,
                env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "1000"},
            )
        self._wait(log)
        self.client = self.make_client("s3", "anybody", "anything")

    def _wait(self, log: Path) -> None:
        for _ in range(START_S * 10):
            try:
                urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
                return
            except (OSError, HTTPException):  # a connection to a port without a listener may be one to itself
                assert self._process.poll() is None, log.read_text()
                time.sleep(0.1)
        raise TimeoutError(log.read_text())

    def make_client(self, service: str, key: str, secret: str) -> Any:
        """botocore's client of a service of the server."""
        return botocore.session.Session().create_client(
            service,
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    def put_many(self, bucket: str, objects: Iterable[tuple[str, bytes]]) -> None:
        """Store objects with plain names, quickly."""
        connection = http.client.HTTPConnection(self._host, self.port, timeout=60)
        with contextlib.closing(connection):
            for key, data in objects:
                connection.request("PUT", f"/{bucket}/{key}", body=data, headers=_ANYBODY)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, answer.status

    def make_user(self, name: str) -> tuple[str, str]:
        """A user who may do everything in S3: access key and secret key."""
        iam = self.make_client("iam", "anybody", "anything")
        iam.create_user(UserName=name)
        policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
        iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=policy)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        iam.close()
        return made["AccessKeyId"], made["SecretAccessKey"]

    def check_keys(self, checks: bool) -> None:
        """Whether keys and signatures are checked from now on."""
        count = b"0" if checks else b"inf"
        asked = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", data=count, method="POST")
        asked.add_header("Content-Type", "text/plain")
        urllib.request.urlopen(asked, timeout=60).close()

    def stop(self) -> None:
        """End it."""
        self.client.close()
        self._process.kill()
        self._process.wait()


class QuickServer(S3Server):
    """One that takes little of the processors, for figures. It knows no keys and no users."""

    module = "tests.fakes.quick_s3"
