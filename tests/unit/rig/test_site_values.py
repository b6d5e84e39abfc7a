"""Values of a site that no network of jobs can have: refused when they are rendered, and by each program on a node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.rig.test_slurm_configs import CONFIGS, render, site_values

WRONG = [
    ("FFDL_RUN", "run/ffdl", "an absolute path"),
    ("FFDL_RUN", "/", "an absolute path"),
    ("FFDL_RUN", "/run/$(id)", "an absolute path"),
    ("FFDL_LIBEXEC", "/opt/a b", "an absolute path"),
    ("JOB_MARK", "", "every job would ask for a network"),
    ("JOB_MARK", 'x"', "letters, digits"),
    ("JOB_MARK_SOURCE", "slurm", "env or scontrol"),
    ("NETWORK_PREFIX", "10.200.1", "the first two numbers"),
    ("NETWORK_PREFIX", "10.0200", "the first two numbers"),
    ("NETWORK_PREFIX", "127.0", "the first two numbers"),
    ("NETWORK_PREFIX", "169.254", "the first two numbers"),
    ("NETWORK_PREFIX", "224.1", "the first two numbers"),
    ("NETWORK_EGRESS_PREFIX", "10.256", "the first two numbers"),
    ("NETWORK_EGRESS_PREFIX", "10.200", "it must differ from NETWORK_PREFIX"),
    ("NETWORK_SLOTS", "0", "a whole number from 1 to 4096"),
    ("NETWORK_SLOTS", "4097", "a whole number from 1 to 4096"),
    ("NETWORK_SLOTS", "many", "a whole number from 1 to 4096"),
    ("NETWORK_SLOTS", "", "a whole number from 1 to 4096"),
    ("NETWORK_UDP_PORT", "4790", "a port below 1024"),
    ("NETWORK_UDP_PORT", "999", "it must not be in NETWORK_SOURCE_PORTS"),
    ("NETWORK_SOURCE_PORTS", "600-1024", "two ports below 1024"),
    ("NETWORK_SOURCE_PORTS", "600", "two ports below 1024"),
    ("NETWORK_SOURCE_PORTS", "999-600", "two ports below 1024"),
    ("NETWORK_MECHANISM", "", "vxlan or wireguard"),
    ("NETWORK_MECHANISM", "gre", "vxlan or wireguard"),
    ("NETWORK_WIREGUARD_PROGRAM", "wireguard-go", "the absolute path of a program, or nothing"),
    ("NETWORK_WIREGUARD_PORTS", "10000", "two ports, the smaller one first"),
    ("NETWORK_WIREGUARD_PORTS", "26383-10000", "two ports, the smaller one first"),
    ("NETWORK_WIREGUARD_PORTS", "60000-65536", "two ports, the smaller one first"),
    ("NETWORK_WIREGUARD_PORTS", "10000-10030", "there must be at least as many as NETWORK_SLOTS"),
    ("NETWORK_SECRET", "network.secret", "an absolute path"),
    ("NETWORK_GROUPS", "a,,b", "names of groups"),
    ("NETWORK_GROUPS", 'a"b', "names of groups"),
    ("NETWORK_EGRESS_TO", "10.9.0.1/24", "IPv4 networks without host bits"),
    ("NETWORK_EGRESS_TO", "data.example.org", "IPv4 networks without host bits"),
    ("NETWORK_COMMAND_TIMEOUT_S", "0", "greater than 0"),
    ("NETWORK_COMMAND_TIMEOUT_S", "nan", "greater than 0"),
    ("NETWORK_COMMAND_TIMEOUT_S", "41", "may not take longer than NETWORK_TIMEOUT_S"),
    ("NETWORK_TIMEOUT_S", "0", "a whole number from 1"),
    ("NETWORK_TIMEOUT_S", "40s", "a whole number from 1"),
    ("NETWORK_TIMEOUT_S", "43", "less than PROLOG_EPILOG_TIMEOUT_S"),
    ("PROLOG_EPILOG_TIMEOUT_S", "never", "a whole number from 1"),
    ("APPTAINER_CONF", "apptainer.conf", "an absolute path"),
    ("APPTAINER_STARTERS", "/usr/bin/starter,/bin/starter", "absolute paths or patterns"),
    ("HEALTH_KERNEL_LOG", "dmesg", "it must be kmsg, journal, none, or the absolute path of a file"),
    ("HEALTH_INTERVAL_S", "0", "it must be a whole number from 5 to 65534"),
    ("HEALTH_DRAIN", "true", "it must be yes or no"),
    ("HEALTH_DRAINS_PER_HOUR", "0", "it must be a whole number from 1 to 10000"),
    ("HEALTH_RESUME", "yes", "it resumes what HEALTH_DRAIN drained"),
    ("HEALTH_DISKS", "tmp", "it must be absolute paths"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_render_rejects_invalid_value_with_its_line(tmp_path: Path, name: str, value: str, said: str) -> None:
    done = render(tmp_path / "out", *site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", **{name: value}))
    assert done.returncode == 78
    assert done.stderr.startswith(f"render.py: {tmp_path}/site.env:2: {name} is {value!r}: "), done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_render_reports_all_invalid_values_at_once(tmp_path: Path) -> None:
    values = {"NETWORK_SLOTS": "0", "NETWORK_PREFIX": "ten", "NETWORK_TIMEOUT_S": "60"}
    done = render(tmp_path / "out", *site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", **values))
    named = re.findall(r"site\.env:(\d): (\w+) is", done.stderr)
    assert sorted(named) == [("2", "NETWORK_SLOTS"), ("3", "NETWORK_PREFIX"), ("4", "NETWORK_TIMEOUT_S")]


def test_render_allows_fewer_slots_with_egress_level(tmp_path: Path) -> None:
    site = {"ACCOUNTING_STORAGE_HOST": "db", "NETWORK_SLOTS": "255"}
    assert render(tmp_path / "out", *site_values(tmp_path / "a.env", **site)).returncode == 0
    done = render(tmp_path / "out", *site_values(tmp_path / "b.env", **site, NETWORK_EGRESS_TO="192.0.2.0/24"))
    assert (done.returncode, "b.env:2: NETWORK_SLOTS is '255': level egress" in done.stderr) == (78, True)


def test_render_accepts_valid_network_values(tmp_path: Path) -> None:
    site = {
        "FFDL_RUN": "/run/ffdl-2_x.y",
        "NETWORK_GROUPS": "domain users,a_b-c,S-1",
        "NETWORK_EGRESS_TO": "10.0.0.0/8, 192.0.2.7",
        "NETWORK_MECHANISM": "wireguard",
        "NETWORK_WIREGUARD_PROGRAM": "/usr/bin/wireguard-go",
        "NETWORK_WIREGUARD_PORTS": "300-331",
        "NETWORK_COMMAND_TIMEOUT_S": "2.5",
        "NETWORK_TIMEOUT_S": "42",
        "APPTAINER_STARTERS": "/opt/*/bin/starter[12]:/usr/bin/s",
    }
    done = render(tmp_path / "out", *site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", **site))
    assert (done.returncode, done.stderr) == (0, "")


def test_render_leaves_no_bytecode_in_config_directory(tmp_path: Path) -> None:
    copy = tmp_path / "configs"
    shutil.copytree(CONFIGS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    argv = [sys.executable, str(copy / "render.py"), "--values", str(copy / "values.env")]
    argv += [*site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db"), "--out", str(tmp_path / "out")]
    subprocess.run(argv, check=True)
    assert not list(copy.rglob("__pycache__"))


def test_value_rules_cover_every_value_used_by_hooks_and_programs() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ffdl_network.values as one, ffdl_health.values as other"
    )
    program += "; print(*one.RULES, *other.RULES)"
    argv = [sys.executable, "-I", "-S", "-B", "-c", program, str(CONFIGS / "libexec")]
    checked = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    files = [path for name in ("libexec", "prolog.d", "epilog.d") for path in (CONFIGS / name).rglob("*")]
    texts = [path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"]
    assert {name for text in texts for name in re.findall("@([A-Z_]+)@", text)} == checked


class ChangedNode:
    """What is installed on a node, where somebody has changed two values by hand."""

    def __init__(self, place: Path) -> None:
        self.run_dir, self.out = place / "run", place / "out"
        places = {"FFDL_RUN": str(self.run_dir), "FFDL_LIBEXEC": str(self.out / "libexec")}
        render(self.out, *site_values(place / "v", ACCOUNTING_STORAGE_HOST="db", **places))
        self.file = self.out / "libexec/ffdl_network/settings.py"
        text = self.file.read_text()
        for name, value, wrong in (("NETWORK_SLOTS", "32", "0"), ("NETWORK_PREFIX", "10.200", "10")):
            assert f'"{name}": "{value}"' in text
            text = text.replace(f'"{name}": "{value}"', f'"{name}": "{wrong}"')
        self.file.write_text(text)

    def call(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.out / argv[0]), *argv[1:]], capture_output=True, text=True, check=False, env=env
        )

    def place_of(self, name: str) -> str:
        before = self.file.read_text().partition(f'"{name}": ')[0]
        return f"{self.file}:{before.count(chr(10)) + 1}"

    @property
    def sentence(self) -> str:
        prefix, slots = self.place_of("NETWORK_PREFIX"), self.place_of("NETWORK_SLOTS")
        return (
            f"{prefix}: NETWORK_PREFIX is '10': it must be the first two numbers of addresses of hosts, e.g. 10.200; "
            f"{slots}: NETWORK_SLOTS is '0': it must be a whole number from 1 to 4096; correct the site's values, "
            "render them and install again (docs/network.md, Values)"
        )


@pytest.fixture
def node(tmp_path: Path) -> ChangedNode:
    return ChangedNode(tmp_path)


@pytest.mark.parametrize("argv", [["check"], ["check", "--quiet"], ["check", "--apptainer-conf"], ["boot"]])
def test_node_programs_report_every_invalid_value_with_its_line(node: ChangedNode, argv: list[str]) -> None:
    done = node.call(f"libexec/{argv[0]}", *argv[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{argv[0]}: {node.sentence}\n"


def test_boot_reports_invalid_values_in_node_capabilities(node: ChangedNode) -> None:
    node.run_dir.mkdir()
    (node.run_dir / "capabilities").write_text("network=yes\negress=yes\n")
    node.call("libexec/boot")
    told = dict(line.split("=", 1) for line in (node.run_dir / "capabilities").read_text().splitlines())
    assert (told["network"], told["egress"], told["values"]) == ("no", "no", "no")
    assert told["problem"] == told["values_problem"] == node.sentence
    assert told["programs"] == str(node.out / "libexec")


def test_prolog_and_epilog_report_invalid_values_without_draining_node(node: ChangedNode) -> None:
    done = node.call("prolog.d/50-ffdl", SLURM_JOB_ID="41", SLURM_JOB_COMMENT="ffdl-batch:job/2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (node.run_dir / "job-41/error").read_text() == f"no network for this job: {node.sentence}\n"
    done = node.call("epilog.d/50-ffdl", SLURM_JOB_ID="41")
    assert done.returncode == 0
    assert (node.run_dir / "job-41/epilog.log").read_text() == f"{node.sentence}\n"


@pytest.mark.parametrize(
    ("conf", "groups", "printed"),
    [
        (None, "", False),
        ("allow net users =\n# allow net groups = games\n", "", False),
        ("allow net users = ada\n", "", True),
        (None, "games", True),
    ],
)
def test_check_prints_apptainer_lines_only_if_a_user_or_group_is_allowed(
    tmp_path: Path, conf: str | None, groups: str, printed: bool
) -> None:
    """They go to apptainer.conf by a pipe, whose status is that of its last program."""
    file = tmp_path / "apptainer.conf"
    if conf is not None:
        file.write_text(conf)
    places = {"APPTAINER_CONF": str(file), "NETWORK_SLOTS": "2", "NETWORK_GROUPS": groups, "FFDL_RUN": "/run/ffdl"}
    render(tmp_path / "out", *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db", **places))
    argv = [str(tmp_path / "out/libexec/check"), "--apptainer-conf"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if printed:
        slots = [f"allow netns paths = /run/ffdl/{k}/net" for k in (1, 2)]
        lines = [*([f"allow net groups = {groups}"] if groups else []), *slots]
        assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("check: NETWORK_GROUPS of the site's values is empty, and ")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_accepts_units_of_nodes(tmp_path: Path) -> None:
    places = {"FFDL_LIBEXEC": str(tmp_path / "out/libexec"), "FFDL_BIN": str(tmp_path / "bin")}
    render(tmp_path / "out", *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db", **places))
    (tmp_path / "bin").mkdir()
    for program in ("ffdl-submitd", "ffdl-admin"):
        (tmp_path / "bin" / program).symlink_to("/bin/true")
    names = ("ffdl-cache*", "ffdl-network*", "ffdl-health*")
    units = sorted(path for name in names for path in (tmp_path / "out/systemd").glob(name))
    assert [unit.name for unit in units] == [
        "ffdl-cache.service",
        "ffdl-health.service",
        "ffdl-health.timer",
        "ffdl-network-check.service",
        "ffdl-network-check.timer",
        "ffdl-network.service",
    ]
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, units)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_accepts_report_units(tmp_path: Path) -> None:
    render(tmp_path / "out", *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db", FFDL_BIN=str(tmp_path / "bin")))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ffdl").symlink_to("/bin/true")
    units = sorted(map(str, (tmp_path / "out/systemd").glob("ffdl-report*")))
    assert len(units) == 2
    argv = ["systemd-analyze", "verify", "--user", "--man=no", "--recursive-errors=no", *units]
    environment = {**os.environ, "LC_ALL": "C", "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
