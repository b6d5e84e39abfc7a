"""Tests which configuration files are used, depending on who can write them, and what ``./ffdl.toml`` may set."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from ffdl_batch.config import ConfigError, Settings, load, load_settings
from ffdl_batch.config.daemon_location import find_other_writers
from ffdl_batch.domain.harmless_settings import harmless_keys
from ffdl_batch.plugins import adapter_names, harmless_settings

OTHER = 4711
UNUSED = 'host = "evil"\n= no TOML'


def give_away(monkeypatch: pytest.MonkeyPatch, path: Path, uid: int = OTHER) -> None:
    """Make `path` appear to belong to another user, which only root could do to a file."""
    given = path.stat()

    def look(found: os.stat_result, owners: Collection[int]) -> str:
        is_given = (found.st_dev, found.st_ino) == (given.st_dev, given.st_ino)
        return find_other_writers(os.stat_result((*found[:4], uid, *found[5:10])) if is_given else found, owners)

    monkeypatch.setattr(load, "find_other_writers", look)


def make_untrusted(how: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `file`, which other users can write or replace in the way of `how`."""
    real = file
    if how.startswith("link"):
        real = file.parent.parent / "elsewhere" / "real.toml"
        real.parent.mkdir()
        file.symlink_to(real)
    real.write_text(UNUSED)
    place = real.parent if "directory" in how else real
    if "others" in how:
        give_away(monkeypatch, place)
    elif "unmapped" in how:
        give_away(monkeypatch, place, 65534)
    else:
        place.chmod(int(how.rpartition(" ")[2], 8))


HOWS = [
    "file of others", "file unmapped", "file 0664", "file 0646", "directory of others", "directory 0775",
    "directory 1777", "link to file of others", "link into directory of others", "link into directory 0757",
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "a\nproject"
    found.mkdir()
    return found


def settings_in(directory: Path, **environ: str) -> Settings:
    return load_settings(cwd=directory, environ={"HOME": str(directory / "home"), **environ})


@pytest.mark.parametrize("how", HOWS)
def test_file_of_working_directory_is_ignored_if_others_can_write_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    make_untrusted(how, project / "ffdl.toml", monkeypatch)
    assert settings_in(project).host == settings_in(project).host == ""
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"ffdl: ignored {project.parent}/a?project/ffdl.toml: ")
    assert ("belongs to user" if "others" in how or "unmapped" in how else "which lets others write; run: ") in err


def test_link_in_directory_of_others_to_own_file_is_ignored(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text("default_cpus = 7\n")
    (project / "ffdl.toml").symlink_to(tmp_path / "own.toml")
    give_away(monkeypatch, project)
    assert settings_in(project).default_cpus == 5.0
    assert f"belongs to user {OTHER}" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["link of others to file", "link of others to directory", "link to link of others"])
def test_named_file_is_rejected_if_another_user_chooses_target_of_link(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    (tmp_path / "own.toml").write_text('host = "evil"\n')
    (project / "file").symlink_to("../own.toml")
    (project / "directory").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(project / "file")
    give_away(monkeypatch, project)
    names = {"file": project / "file", "directory": project / "directory" / "own.toml", "others": tmp_path / "link"}
    with pytest.raises(ConfigError, match=f"belongs to user {OTHER}"):
        settings_in(tmp_path / "home", FFDL_CONFIG=str(names[link.rsplit(maxsplit=1)[-1]]))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("named", ["FFDL_CONFIG", "XDG_CONFIG_HOME", "site"])
def test_named_user_and_site_file_is_rejected_if_others_can_write_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, named: str
) -> None:
    (tmp_path / "ffdl").mkdir()
    file = tmp_path / "ffdl" / "config.toml"
    make_untrusted(how, file, monkeypatch)
    environ = {"FFDL_CONFIG": str(file)} if named == "FFDL_CONFIG" else {"XDG_CONFIG_HOME": str(tmp_path)}
    if named == "site":
        environ = {}
        monkeypatch.setattr(load, "SITE_FILES", (file,))
    with pytest.raises(ConfigError, match=r"belongs to user|which lets others write; run: chmod go-w /"):
        settings_in(project, **environ)


def test_tables_of_spawner_and_hub_are_ignored_in_site_file_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ffdl").mkdir()
    file = tmp_path / "ffdl" / "config.toml"
    file.write_text('jobs_dir = "/jobs"\n[spawner]\nmin_uid = 2000\n[hub]\nlisten = "127.0.0.1:80"\n')
    with pytest.raises(ConfigError, match="unknown key 'spawner'"):
        settings_in(project, XDG_CONFIG_HOME=str(tmp_path))
    monkeypatch.setattr(load, "SITE_FILES", (file,))
    assert settings_in(project).jobs_dir == "/jobs"


@pytest.mark.parametrize(
    ("owner", "mode", "fault"),
    [
        (1000, 0o100644, ""),
        (0, 0o100755, ""),
        (1001, 0o100600, "user 1001"),
        (1000, 0o100664, "0664"),
        (65534, 0o100600, "user 65534"),
    ],
)
def test_owner_and_mode_decide_who_can_write(owner: int, mode: int, fault: str) -> None:
    """Owner 65534 can be any user that a user namespace does not map, even for a process that is not mapped itself."""
    found = os.stat_result((mode, 1, 1, 1, owner, 100, 0, 0, 0, 0))
    said = find_other_writers(found, (owner if owner == 65534 else 1000, 0))
    assert (fault in said) if fault else not said


def make_irregular(kind: str, place: Path) -> None:
    if kind == "a named pipe":
        os.mkfifo(place)
    elif kind == "a directory":
        place.mkdir()
    elif kind == "a device":
        place.symlink_to("/dev/zero")
    else:
        place.symlink_to(place.name if "cannot be followed" in kind else "missing")


IRREGULAR = [
    "a named pipe", "a directory", "a device", "a link to a file that does not exist",
    "a link that cannot be followed (Too many levels of symbolic links)",
]  # fmt: skip


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("named", ["ffdl.toml", "ffdl/config.toml"])
def test_path_that_is_not_regular_file_is_ignored_with_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, named: str
) -> None:
    place = tmp_path / named
    place.parent.mkdir(exist_ok=True)
    make_irregular(kind, place)
    assert settings_in(tmp_path, XDG_CONFIG_HOME=str(tmp_path)).default_cpus == 5.0
    err = capsys.readouterr().err
    assert err.startswith(f"ffdl: ignored {place}: it is {kind}") and err.count("\n") == 1


@pytest.mark.parametrize("kind", [*IRREGULAR, "it does not exist"])
def test_named_path_that_is_not_regular_file_is_rejected(tmp_path: Path, kind: str) -> None:
    if kind in IRREGULAR:
        make_irregular(kind, tmp_path / "named")
    with pytest.raises(ConfigError) as caught:
        settings_in(tmp_path, FFDL_CONFIG=str(tmp_path / "named"))
    assert f"FFDL_CONFIG names {tmp_path}/named, but it " in str(caught.value)
    assert kind in str(caught.value) and "unset FFDL_CONFIG" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"host = ''\nx = " + b"[" * 5000, "line 2 has lists or tables in more than 64 levels; use fewer"),
        (b"x = " + b"{a=" * 65 + b"1" + b"}" * 65, "line 1 has lists or tables in more than 64 levels; use fewer"),
        (b"\n\nlease_s = " + b"9" * 5000, "line 3 has an integer of more than 4300 digits; write a smaller number"),
        (b"lease_s = 1\nhost = '\xff'", r"line 2 has the byte \xff, which is not UTF-8; save it as UTF-8"),
        (b"\n\xff", r"line 2 has the byte \xff, which is not UTF-8"),
        (b"\x7fELF\x02\x80", r"line 1 has the byte \x80, which is not UTF-8"),
        (b"lease_s =\n", "Invalid value (at line 1, column 10)"),
    ],
)
def test_file_that_cannot_be_parsed_is_rejected_with_line_and_cure(tmp_path: Path, raw: bytes, words: str) -> None:
    (tmp_path / "ffdl.toml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        settings_in(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/ffdl.toml: {words}")


@pytest.mark.parametrize("text", [f"'{'[' * 99}'", f'"{chr(92)}"{"[" * 99}"', f"1 # {'[' * 99}", f'"{"9" * 5000}"'])
def test_brackets_and_digits_in_texts_and_comments_do_not_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "ffdl.toml").write_text(f"[backend.slurm]\npartition = {text}\n")
    assert "partition" in settings_in(tmp_path).backend_settings("slurm")


def test_link_of_own_to_own_file_is_used(project: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("default_cpus = 7\n")
    (project / "ffdl.toml").symlink_to(tmp_path / "own.toml")
    assert settings_in(project).default_cpus == 7.0


def test_file_is_read_from_directory_that_was_checked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever replaces the directory between the check and the reading is not read."""
    (project / "ffdl.toml").write_text("default_cpus = 7\n")
    exchanged, checked = tmp_path / "exchanged", [load._refuse_others]

    def exchange(place: Path, found: os.stat_result) -> None:
        checked[0](place, found)
        checked.append(checked[0])
        if len(checked) == 2:
            project.rename(exchanged)
            project.mkdir()
            (project / "ffdl.toml").write_text("default_cpus = 99\n")

    monkeypatch.setattr(load, "_refuse_others", exchange)
    assert (settings_in(project).default_cpus, exchanged.exists()) == (7.0, True)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('host = "evil"', "host"),
        ('metrics_textfile = "/home/ada/thesis"', "metrics_textfile"),
        ('database_url = "postgresql://evil/x"', "database_url"),
        ('state_dir = "/tmp/evil"', "state_dir"),
        ('[notices]\nsmtp = "evil:25"', "notices"),
        ('[[fault_policies]]\nname = "a"\nmatch = "("', "fault_policies"),
        ('[frameworks.pytorch]\ntemplate = "docker://evil/{version}"', "frameworks"),
        ('network_minimum = "host"', "network_minimum"),
        ('[backend.local]\nmax_jobs = 2\napptainer = "/tmp/evil"', "backend.local.apptainer"),
        ('[backend.local]\nruntime = "bare"', "backend.local.runtime"),
        ('[backends.slurm]\nsrun_args = ["--task-prolog=/tmp/evil"]', "backend.slurm.srun_args"),
        ('[backend.slurm]\npython = "/tmp/evil"', "backend.slurm.python"),
        ('[backend.kubernetes]\nkubeconfig = "/tmp/evil"', "backend.kubernetes.kubeconfig"),
        ("[backend.unheard_of]\nkey = 1", "backend.unheard_of.key"),
    ],
)
def test_file_of_working_directory_is_rejected_for_setting_that_is_not_harmless(
    project: Path, text: str, key: str
) -> None:
    (project / "ffdl.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings_in(project)
    assert str(caught.value).startswith(f"{project}/ffdl.toml: {key} is not accepted in an ffdl.toml in the working")
    assert "run: export FFDL_CONFIG='" in str(caught.value) and "default_memory" in str(caught.value)
    assert "no key" not in str(caught.value)


def test_file_that_is_named_and_in_working_directory_may_set_everything(project: Path) -> None:
    (project / "ffdl.toml").write_text('host = "login"\n')
    assert settings_in(project, FFDL_CONFIG=str(project / "ffdl.toml")).host == "login"


def test_file_of_working_directory_may_set_harmless_settings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "ffdl.toml").write_text('[backend]\ndefault = "slurm"\n[backend.slurm]\npartition = "gpu"\n')
    settings = settings_in(project)
    assert (settings.backend, settings.backend_settings("slurm")) == ("slurm", {"partition": "gpu"})
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"ffdl: using {project.parent}/a?project/ffdl.toml: backend, backend.slurm.partition\n")


def test_reference_marks_settings_that_file_of_working_directory_may_set() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/configuration.md").read_text()
    tables = {"## Keys": harmless_keys(Settings)}
    tables |= {f"## `[backend.{name}]`": frozenset(harmless_settings(name)) for name in adapter_names()}
    for heading, keys in tables.items():
        table = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
        rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
        marked = {key.strip("| `") for row in rows if row[1] == "yes" for key in row[0].split(", ")}
        assert marked == keys, heading
