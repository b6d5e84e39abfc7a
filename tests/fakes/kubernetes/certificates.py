"""Certificates of a test's own authority, and the kubeconfig that holds them."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs for servers and clients."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        signed = self._begin(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self._certificate = signed.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file = place / "ca.crt"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self) -> Pair:
        """For the server on loopback."""
        names = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
            x509.DNSName("kubernetes"),
        ]
        return self._pair("server", [], ExtendedKeyUsageOID.SERVER_AUTH, names)

    def _pair(self, name: str, groups: list[str], use: x509.ObjectIdentifier, names: list[x509.GeneralName]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = self._begin(subject, key).add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        built = built.add_extension(x509.BasicConstraints(False, None), critical=True)
        found = Pair(self._place / f"{name}.crt", self._place / f"{name}.key")
        found.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        found.key.touch(0o600)
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return found

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def server_context(pair: Pair, authority: Path) -> ssl.SSLContext:
    """TLS of the server; a client may show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def write_kubeconfig(file: Path, server: str, authority: Path, *, namespace: str, token: str) -> Path:
    """A kubeconfig (JSON is YAML) with a token."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode()}
    context = {"cluster": "fake", "user": "test", "namespace": namespace}
    file.touch(0o600)
    file.write_text(
        json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}], "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": context}],
        }, indent=1)
    )  # fmt: skip
    return file
