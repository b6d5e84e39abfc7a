"""The certificate of a test's API server, and the kubeconfig that trusts it."""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(place: Path) -> tuple[Path, Path]:
    """Write a certificate for loopback, which is its own authority, and the same with its key; return the files."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    authority, server = place / "ca.crt", place / "server.pem"
    authority.write_bytes(public)
    server.touch(0o600)
    server.write_bytes(public + key.private_bytes(serialization.Encoding.PEM, form, encryption))
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
