"""The certificate of a test's API server, and the kubeconfig that trusts it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.fakes.certificates import certificate_for


def make_certificate(place: Path) -> tuple[Path, Path]:
    """Write a certificate for loopback, which is its own authority, and the same with its key; return the files."""
    (authority, key), server = certificate_for("127.0.0.1", place), place / "server.pem"
    server.touch(0o600)
    server.write_bytes(authority.read_bytes() + key.read_bytes())
    return authority, server


def write_kubeconfig(file: Path, server: str, authority: Path, *, namespace: str, token: str) -> Path:
    """Write a kubeconfig (JSON is YAML) with a token."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode()}
    context = {"cluster": "fake", "user": "test", "namespace": namespace}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": cluster}], "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "fake", "context": context}],
    }  # fmt: skip
    file.touch(0o600)
    file.write_text(json.dumps(config, indent=1))
    return file
