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
    "IO::Socket::INET: Bad hostname 'data.example.org:80'",
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by 'NewConnectionError('Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')'",
    "ERROR: Could not find a version that satisfies the requirement six (from versions: none)",
)
BOTH = ("egress", "host")


@pytest.mark.parametrize("line", UNRESOLVED)
def test_unresolved_name_is_explained_by_network_level_none(line: str) -> None:
    assert explain_unreachable("none", BOTH, ("epoch 1", line, "exit")) == (
        "at network level none it cannot reach other hosts; "
        "if it needs more, submit with --network egress:HOST:PORT or --network host (batch.network)"
    )


@pytest.mark.parametrize(
    ("level", "offered", "cure"),
    [
        ("none", ("host",), "if it needs more, submit with --network host (batch.network)"),
        ("none", ("egress",), "if it needs more, submit with --network egress:HOST:PORT (batch.network)"),
        ("job", (), "this site offers no wider level"),
        ("egress", BOTH, "submit with --network egress:HOST:PORT or --network host (batch.network)"),
    ],
)
def test_hint_offers_only_levels_that_job_could_have(level: str, offered: tuple[str, ...], cure: str) -> None:
    hint = explain_unreachable(level, offered, UNRESOLVED[:1])
    assert hint.startswith(f"at network level {level} it can") and hint.endswith(cure), hint


@pytest.mark.parametrize(
    ("command", "code", "explained"),
    [
        ("wget -q https://data.example.org/a", 4, True),
        ("getent hosts data.example.org && python3 train.py", 2, True),
        ("curl -s https://data.example.org/a", 6, True),
        ("/usr/bin/curl -s https://192.0.2.1/a", 7, True),
        ("wget -q https://data.example.org/a", 2, False),
        ("python3 train.py", 4, False),
        ("python3 wgetter.py", 4, False),
        ("wget -q https://data.example.org/a", None, False),
    ],
)
def test_silent_program_is_explained_by_its_exit_code(command: str, code: int | None, explained: bool) -> None:
    assert bool(explain_unreachable("none", BOTH, (), command, code)) is explained
    assert explain_unreachable("host", BOTH, (), command, code) == ""


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("host", UNRESOLVED),
        ("auto", UNRESOLVED),
        ("none", ("ValueError: host", "ERROR: Could not find a version: six==9 (from versions: 1.16.0, 1.17.0)")),
        ("none", ()),
    ],
)
def test_network_level_explains_nothing_else(level: str, lines: tuple[str, ...]) -> None:
    assert explain_unreachable(level, BOTH, lines) == ""
