"""What all tests share: the switch that rewrites golden files, and a Ctrl-C that reaches the programs under test."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """A shell starts background commands with SIGINT ignored, and so would be every program that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``: write what the code makes now; read the difference before you commit it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten."""
    return bool(request.config.getoption("--update-golden"))
