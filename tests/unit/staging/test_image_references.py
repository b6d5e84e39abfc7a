"""What a reference to an image means."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.data.image_reference import NotAReference, Reference, parse_reference
from ffdl_batch.staging.images.program import key_of
from ffdl_batch.staging.images.registry import endpoint_of

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("docker://ubuntu", Reference("docker", "docker.io", "library/ubuntu")),
        ("docker://ubuntu:20.04", Reference("docker", "docker.io", "library/ubuntu", "20.04")),
        ("docker://tomcli/pytorch:v1", Reference("docker", "docker.io", "tomcli/pytorch", "v1")),
        ("docker://docker.io/tomcli/pytorch", Reference("docker", "docker.io", "tomcli/pytorch")),
        ("docker://ghcr.io/a/b/c:x", Reference("docker", "ghcr.io", "a/b/c", "x")),
        ("docker://localhost:5000/a", Reference("docker", "localhost:5000", "a")),
        ("docker://localhost/a", Reference("docker", "localhost", "a")),
        ("docker://index.docker.io/ubuntu", Reference("docker", "docker.io", "library/ubuntu")),
        ("DOCKER://Quay.IO/a", Reference("docker", "quay.io", "a")),
        ("oras://quay.io:443/a/b:x", Reference("oras", "quay.io:443", "a/b", "x")),
        ("oras://registry/a", Reference("oras", "registry", "a")),
        ("library://a/b/c:x", Reference("library", "", "a/b/c", "x")),
        ("library://registry/a/b/c", Reference("library", "registry", "a/b/c")),
        (f"docker://quay.io/a/b@{DIGEST}", Reference("docker", "quay.io", "a/b", "latest", DIGEST)),
        (f"docker://quay.io/a/b:x@{DIGEST}", Reference("docker", "quay.io", "a/b", "x", DIGEST)),
    ],
)
def test_parse_reference_reads_image_like_docker(text: str, meant: Reference) -> None:
    assert parse_reference(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "docker://", "docker://a b", "docker://quay.io/../x", "docker://quay.io/a:", "docker://quay.io/A",
        "docker://a@b", "docker://quay.io/a?x=y", "docker://user:pass@quay.io/a", "docker://quay.io:port/a",
        "docker://-rf/a", "docker://quay.io/a/../b", "docker://quay.io//a", "docker://quay.io/a%2fb", "oras://a",
        "docker://d\u043ecker.io/a", "shub://a/b", "quay.io/a",
    ],
)  # fmt: skip
def test_parse_reference_rejects_invalid_image_reference(text: str) -> None:
    with pytest.raises(NotAReference, match="not a reference to an image"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("docker.io", "https://registry-1.docker.io"),
        ("quay.io", "https://quay.io"),
        ("localhost:5000", "http://localhost:5000"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.1.2.3:80", "http://127.1.2.3:80"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
    ],
)
def test_image_endpoint_uses_http_only_for_loopback_host(host: str, endpoint: str) -> None:
    assert endpoint_of(host) == endpoint


def test_image_key_depends_on_digest_name_and_builder_but_not_tag() -> None:
    reference, maker = parse_reference("docker://quay.io/a/b:x"), "apptainer 1 x86_64"
    key = key_of(reference, DIGEST, maker)
    assert key_of(parse_reference("docker://quay.io/a/b:y"), DIGEST, maker) == key
    others = {
        key_of(parse_reference("docker://quay.io/a/c:x"), DIGEST, maker),
        key_of(parse_reference("docker://ghcr.io/a/b:x"), DIGEST, maker),
        key_of(parse_reference("oras://quay.io/a/b:x"), DIGEST, maker),
        key_of(reference, DIGEST.replace("0", "1"), maker),
        key_of(reference, DIGEST, "apptainer 2 x86_64"),
    }
    assert len(others | {key}) == 6


def test_image_reference_pinned_uses_resolved_digest() -> None:
    assert parse_reference("docker://ubuntu").pinned(DIGEST) == f"docker://docker.io/library/ubuntu@{DIGEST}"
