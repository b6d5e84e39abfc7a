"""What ``ffdl run`` sends, and the process that cancels its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.cli.commands.interactive import _sent_model
from ffdl_batch.client.interactive import CancelAtEnd
from tests.unit.client.fake_daemon import FakeDaemon


def test_job_is_cancelled_without_modules_of_the_current_directory(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("click", "json", "ffdl_batch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FFDL_SOCKET", str(daemon.path))
    with CancelAtEnd([], "interactive-0a1b2c3d4"):
        pass
    assert not (tmp_path / "taken").exists()
    assert any("interactive-0a1b2c3d4/cancel" in request for request in daemon.requests)


@pytest.mark.parametrize("below", ["", "work"])
def test_home_directory_is_not_sent_if_home_is_a_link(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real" / "alice", tmp_path / "alice"
    (real / "work").mkdir(parents=True)
    (real / "secret").touch()
    link.symlink_to(real)
    monkeypatch.setenv("HOME", str(link))
    monkeypatch.chdir(link / below)
    with _sent_model(None) as sent:
        assert sent == real / "work" if below else [one.name for one in sent.iterdir()] == [".nothing-sent"]
    monkeypatch.chdir(real.parent)
    with _sent_model(None) as sent:
        assert [one.name for one in sent.iterdir()] == [".nothing-sent"], "it has the home directory"
