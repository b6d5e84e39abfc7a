"""The proof of conversion in short, and that it fails where a conversion is wrong."""

from __future__ import annotations

import pytest

from tests.proof.convert.__main__ import main
from tests.proof.convert.breaks import BREAKS

SHORT = ("assignments", "exports", "heredoc", "mpirun-nodes", "pyxis", "quoting", "srun-two-nodes", "tasks-on-a-node")


def _only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_what_is_converted_starts_what_the_script_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_only(*SHORT)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[0] == "8 scripts, 6 understood, 2 run whole"
    assert said.out.splitlines()[1].endswith(", 0 wrong")


@pytest.mark.parametrize("broken", BREAKS)
def test_a_conversion_that_was_made_wrong_is_found(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_only("pyxis"), "--break", broken]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1].endswith(", 1 wrong")
    assert said.err.startswith("pyxis: ")
