"""What a network level explains of a learner's failure."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.launch.network_level import explain_unreachable

UNRESOLVED = (
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "socket.gaierror: [Errno -2] Name or service not known",
    "curl: (6) Could not resolve host: data.example.org",
    "wget: unable to resolve host address 'data.example.org'",
    "Failed to resolve 'huggingface.co' ([Errno -3] ...)",
    "dial tcp: lookup data.example.org: no such host",
    "java.net.UnknownHostException: data.example.org",
    "Error: getaddrinfo EAI_AGAIN data.example.org",
    "OSError: [Errno 101] Network is unreachable",
)


@pytest.mark.parametrize("line", UNRESOLVED)
def test_unresolved_name_is_explained_by_network_level_none(line: str) -> None:
    said = explain_unreachable("none", ("epoch 1", line, "exit"))
    assert "network level none" in said and "--network egress:HOST:PORT or --network host" in said


@pytest.mark.parametrize(
    ("level", "lines"), [("host", UNRESOLVED), ("auto", UNRESOLVED), ("none", ("ValueError: host",)), ("none", ())]
)
def test_network_level_explains_nothing_else(level: str, lines: tuple[str, ...]) -> None:
    assert explain_unreachable(level, lines) == ""
