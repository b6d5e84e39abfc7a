"""ffdl-admin doctor over programs that answer as Slurm does; the step that it sends to a node is really run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import pytest

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item, Verdict
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.doctor import node_checks
from ffdl_slurm.doctor.cluster_checks import parse_config
from ffdl_slurm.doctor.data_checks import data_items
from tests.unit.admin.conftest import run_admin

CONFIG = {
    "Epilog[0]": "/etc/slurm/epilog.d/*",
    "KillWait": "30 sec",
    "Prolog[0]": "/etc/slurm/prolog.d/*",
    "PrologFlags": "Alloc,Contain",
    "SlurmdTimeout": "300 sec",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ConstrainDevices": "yes",
}
NODES = """\
urgent|10|n1|ffdl-network,ffdl-egress,fast|gpu:a100:4|idle
any|1|n1|ffdl-network,ffdl-egress,fast|gpu:a100:4|idle
main*|1|n1|ffdl-network,ffdl-egress,fast|gpu:a100:4|idle
main*|1|n2|ffdl-network,ffdl-egress|gpu:a100:4|mixed
spot|0|n2|ffdl-network,ffdl-egress|gpu:a100:4|mixed
spot|0|n3|(null)|(null)|drained
plain|1|n4|fast|(null)|idle
"""
CAPABLE = "format=1\nnetwork=yes\negress=yes\n"
MADE = 'mkdir -p "$run/job-$SLURM_JOB_ID"; echo netns=/proc/self/ns/net >"$run/job-$SLURM_JOB_ID/network"'
SRUN = """\
#!/bin/sh
echo "$@" >>"$calls"
for word; do case "$word" in --nodelist=*) node=${word#*=} ;; esac; done
while [ "$1" != /bin/sh ]; do shift; done
exec 9>"$calls.lock"; flock 9 # until this ends: here the nodes share a directory
rm -rf "$run"; mkdir "$run"
export SLURM_JOB_ID=7
. "$nodes/$node"
exec "$@"
"""


SINFO = """\
#!/bin/sh
case "$*" in *%E*) ;; *) exec cat ROWS ;; esac
for word; do [ "$before" != -n ] || node=$word; before=$word; done
cat "$nodes/$node.now" 2>/dev/null || echo "$(grep "|$node|" ROWS | head -n 1 | cut -d"|" -f6)|none"
"""
"""A file n1.now has what Slurm says of n1 when it was asked."""
SHARED = 'echo "in=$(readlink /proc/self/ns/net)"'
CONTAINED = f'#!/bin/sh\ncase " $* " in *" --net --network none "*) echo "in=net:[1]" ;; *) {SHARED} ;; esac\n'


@dataclass
class Site:
    """A cluster of programs. What a node's prolog does is a line of shell."""

    place: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    config: dict[str, str] = field(default_factory=lambda: dict(CONFIG))

    def __post_init__(self) -> None:
        for name in ("bin", "nodes", "jobs", "scratch"):
            (self.place / name).mkdir()
        self.monkeypatch.setattr("ffdl_slurm.doctor.cluster_checks._CHECKS_AT_S", (0.0,))
        self.monkeypatch.setenv("PATH", f"{self.place}/bin:{os.environ['PATH']}")
        self.monkeypatch.setenv("FFDL_CONFIG", str(self.place / "config.toml"))
        self.monkeypatch.setenv("FFDL_JOBS_DIR", str(self.place / "jobs"))
        for name, value in (("calls", "calls"), ("run", "run"), ("nodes", "nodes")):
            self.monkeypatch.setenv(name, str(self.place / value))
        self.settings()
        self.program("apptainer", CONTAINED)
        self.program("srun", SRUN)
        self.sinfo(NODES)
        self.slurm_conf()
        for name in ("n1", "n2", "n3", "n4"):
            self.node(name, f"printf '{CAPABLE}' >$run/capabilities; {MADE}")

    def settings(self, more: str = "") -> None:
        table = f'scratch_base = "{self.place}/scratch"\nnetwork_dir = "{self.place}/run"\n{more}'
        (self.place / "config.toml").write_text(f'[backend]\ndefault = "slurm"\n[backend.slurm]\n{table}')

    def program(self, name: str, text: str) -> None:
        (self.place / "bin" / name).write_text(text)
        (self.place / "bin" / name).chmod(0o755)

    def sinfo(self, rows: str) -> None:
        (self.place / "rows").write_text(rows)
        self.program("sinfo", SINFO.replace("ROWS", str(self.place / "rows")))

    def slurm_conf(self, **changed: str) -> None:
        lines = "".join(f"{key:<24}= {value}\n" for key, value in {**self.config, **changed}.items())
        self.program("scontrol", f"#!/bin/sh\ncat <<'EOF'\nConfiguration data as of today\n{lines}EOF\n")

    def node(self, name: str, prolog: str) -> None:
        (self.place / "nodes" / name).write_text(f"{prolog}\n")

    def run(self, *words: str) -> tuple[int, list[str]]:
        """The code, and the lines of output and errors."""
        code, out, err = run_admin(self.capsys, self.monkeypatch, "doctor", *words)
        return code, (out + err).splitlines()

    def wrong(self, *words: str) -> list[str]:
        code, lines = self.run(*words)
        found = [line.partition(" ")[2].strip() for line in lines if line.startswith("wrong ")]
        assert code == (1 if found else 0), lines
        return found


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("mount", "kind"),
    [
        ("nfs4 server:/home rw,vers=4.2,sec=krb5p,proto=tcp", "NFS with Kerberos"),
        ("nfs server:/home rw,vers=3,sec=krb5", "NFS with Kerberos"),
        ("afs AFS rw", "AFS"),
        ("nfs4 server:/home rw,vers=4.2,sec=sys", ""),
        ("ext4 /dev/sda1 rw", ""),
    ],
)
def test_doctor_notes_directories_that_need_a_ticket(site: Site, mount: str, kind: str) -> None:
    table = site.place / "mountinfo"
    table.write_text(f"22 1 8:1 / / rw - ext4 /dev/vda rw\n23 22 0:40 / {site.place}/jobs rw shared:5 - {mount}\n")
    site.monkeypatch.setattr("ffdl_batch.host.filesystem._MOUNTINFO", table)
    code, lines = site.run()
    noted = [line for line in lines if "ticket" in line]
    assert (code, len(noted)) == (0, 1 if kind else 0)
    assert all(line.startswith(f"note   jobs_dir: {site.place}/jobs is on {kind}: ") for line in noted)


def test_doctor_exits_0_and_prints_one_line_per_check(site: Site) -> None:
    assert site.run() == (
        0,
        [
            "ok     slurm",
            "ok     slurm.conf: networks",
            "ok     slurm.conf: GPUs",
            "ok     partition any: network levels job and egress on its node",
            "ok     partition main: network levels job and egress on all 2 nodes",
            "note   partition plain: no node has the feature 'ffdl-network': no network level job here",
            "note   partition spot: n3 has not the feature 'ffdl-network': network level job needs "
            "--constraint=ffdl-network here",
            "ok     partition urgent: network levels job and egress on its node",
        ],
    )
    assert not (site.place / "calls").exists()


def test_doctor_examines_nodes_with_network_job_in_lowest_tier_partition(site: Site) -> None:
    code, lines = site.run("--nodes", "n1,n4")
    assert (code, lines[-2:]) == (
        0,
        [
            "ok     node n1",
            "ok     node n4: it makes networks of jobs; without the feature 'ffdl-network' no job asks for one",
        ],
    )
    calls = (site.place / "calls").read_text()
    assert "--nodelist=n1 --partition=main" in calls, "no partition of a higher tier, whose jobs preempt others"
    assert "--comment=ffdl-batch:job/1" in calls
    assert "--account" not in calls
    assert sorted(line.split()[1] for line in site.run("--nodes=all")[1] if " node n" in line) == ["node"] * 4


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [("n[1-2]", ["n1", "n2"]), ("n[4,1]", ["n1", "n4"]), (" n1, n4 ", ["n1", "n4"]), ("n1,n1", ["n1"])],
)
def test_doctor_accepts_slurm_node_list_syntax(site: Site, nodes: str, asked: list[str]) -> None:
    code, lines = site.run("--nodes", nodes)
    named = [line.split()[2].rstrip(":") for line in lines if line.split()[1] == "node"]
    assert (code, named) == (0, asked)


@pytest.mark.parametrize("nodes", ["n[1-", "n[2-1]", "n[a-b]", "n1,", "n1 n2", "/etc/nodes", ",", " "])
def test_doctor_rejects_invalid_node_list_before_calling_slurm(site: Site, nodes: str) -> None:
    site.program("scontrol", "#!/bin/sh\nexit 1\n")
    code, lines = site.run("--nodes", nodes)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(
        f"ffdl-admin: --nodes is {nodes!r}, which is not a list of nodes: give names as n1,n2 or "
    )


@pytest.mark.parametrize(
    "said",
    [
        "srun: error: Unable to allocate resources: Requested nodes are busy",
        "srun: error: Unable to allocate resources: Immediate execution impossible, insufficient priority",
        "srun: error: Unable to allocate resources: Required node not available (down, drained or reserved)",
        "srun: error: Unable to allocate resources: Job can not start immediately",
        "srun: error: Unable to allocate resources: Connection timed out",
    ],
)
def test_doctor_notes_busy_node_as_not_examined(site: Site, said: str) -> None:
    site.node("n2", f"echo '{said}' >&2; exit 1")
    code, lines = site.run("--nodes=n[1-2]")
    assert (code, lines[-2]) == (75, "ok     node n1")
    assert lines[-1] == (
        f"note   node n2: not examined: {said}; Slurm has it as mixed; run again with --nodes=n2 when it takes jobs"
    )


@pytest.mark.parametrize(
    "state", ["drained", "draining", "down*", "idle*", "failing", "powered_down", "unknown", "rebooting"]
)
def test_doctor_starts_no_job_on_unavailable_node(site: Site, state: str) -> None:
    site.sinfo(NODES.replace("drained", state))
    code, lines = site.run("--nodes=n3")
    assert (code, lines[-1]) == (
        75,
        f"note   node n3: not examined: Slurm has it as {state}; run again with --nodes=n3 when it takes jobs",
    )
    assert not (site.place / "calls").exists()


def test_doctor_exits_1_if_one_node_fails_and_prints_why_slurm_drained_another(site: Site) -> None:
    site.node("n1", "exit 3")
    (site.place / "nodes" / "n3.now").write_text("drained|disk a|b\ndrained|disk a|b\n")
    code, lines = site.run("--nodes=all")
    drained = "not examined: Slurm has it as drained: disk a|b; run again with --nodes=n3 when it takes jobs"
    assert (code, f"note   node n3: {drained}" in lines) == (1, True), lines


@pytest.mark.parametrize(("apptainer", "verdict", "said"), [
    (f'case "$*" in *--net*) echo FATAL: no network >&2; exit 255 ;; esac; {SHARED}', "wrong",
     "apptainer --net --network none, which level none needs, failed there: FATAL: no network"),
    (SHARED, "wrong",
     "apptainer --net --network none, which level none needs, failed there: the container is in the network"),
    ("echo FATAL: no directories >&2; exit 255", "wrong",
     "apptainer started no empty container there: FATAL: no directories"),
    ("exit 3", "wrong", "apptainer started no empty container there: it exited with status 3 and printed nothing"),
    (f'case "$*" in *--net*) exit 4 ;; esac; {SHARED}', "wrong",
     "apptainer --net --network none, which level none needs, failed there: it exited with status 4 and printed "
     "nothing"),
    ("exit 124", "note", "level none was not tried: its container did not end within 10 s"),
])  # fmt: skip
def test_doctor_tries_network_level_none_beside_control_container(
    site: Site, apptainer: str, verdict: str, said: str
) -> None:
    made = site.place / "made"
    site.program("apptainer", f"#!/bin/sh\n{apptainer}\n")
    site.program("mktemp", f'#!/bin/sh\nPATH=/usr/bin:/bin mktemp "$@" | tee -a {made}\n')
    code, lines = site.run("--nodes=n1")
    assert (code, lines[-1].startswith(f"{verdict:<6} node n1: {said}")) == (int(verdict == "wrong"), True), lines
    places = made.read_text().split()
    assert len(places) == 1 and places[0].startswith("/tmp/ffdl-doctor.") and not Path(places[0]).exists()


ROOTLESS = f"""#!/bin/sh
case "$*" in
    "buildcfg LIBEXECDIR") echo PLACE/libexec ;;
    "buildcfg APPTAINER_CONF_FILE") echo PLACE/apptainer.conf ;;
    *" --net --network none "*) echo "in=net:[1]" ;;
    *) {SHARED} ;;
esac
"""


@pytest.mark.parametrize(
    ("helpers", "fuse", "conf", "said"),
    [
        ("starter-suid", False, "allow setuid = yes", ""),
        ("squashfuse_ll", True, "allow setuid = yes", ""),
        ("squashfuse unsquashfs", False, "", "note"),
        ("unsquashfs", True, "", "note"),
        ("starter-suid unsquashfs", True, "allow setuid = no", "note"),
        ("", True, "", "wrong"),
    ],
)
def test_doctor_reports_how_rootless_apptainer_opens_images(
    site: Site, helpers: str, fuse: bool, conf: str, said: str
) -> None:
    place = site.place / "libexec" / "apptainer" / "bin"
    place.mkdir(parents=True)
    for name in helpers.split():
        (place / name).touch()
        (place / name).chmod(0o4755)
    (site.place / "apptainer.conf").write_text(f"{conf}\n")
    site.program("apptainer", ROOTLESS.replace("PLACE", str(site.place)))
    device = site.place / "fuse"
    device.touch() if fuse else None
    look = node_checks._LOOK.replace("/dev/fuse", str(device)).replace('bin:$PATH" command', 'bin" command')
    site.monkeypatch.setattr(node_checks, "_LOOK", look)
    code, lines = site.run("--nodes=n1")
    found = [line for line in lines if "squashfuse" in line]
    assert [line.partition(" ")[0] for line in found] == ([said] if said else []), lines
    assert code == (1 if said == "wrong" else 0)
    assert said != "note" or "each start of a learner unpacks its whole image; install squashfuse" in found[0]


def test_doctor_looks_for_enroot_if_runtime_is_pyxis(site: Site) -> None:
    site.settings('runtime = "pyxis"\n')
    site.program("apptainer", "#!/bin/sh\nexit 3\n")
    assert site.wrong("--nodes=n1") == ["node n1: enroot is not on the PATH there"]
    site.program("enroot", "#!/bin/sh\n")
    assert site.run("--nodes=n1")[1][-1] == "ok     node n1"


def test_doctor_skips_network_level_none_when_mktemp_fails(site: Site) -> None:
    site.program("mktemp", "#!/bin/sh\necho 'mktemp: no space left' >&2; exit 1\n")
    assert site.run("--nodes=n1")[1][-1] == "note   node n1: level none was not tried: mktemp: no space left"


DRAINS = 'echo "drained|Prolog error" >$nodes/$node.now; echo srun: error: no >&2; exit 1'


def test_doctor_reports_prolog_drain_that_follows_srun_exit(site: Site) -> None:
    site.monkeypatch.setattr(
        "ffdl_slurm.doctor.cluster_checks._CHECKS_AT_S", (0.0, *[0.1] * 600)
    )  # the moment may be a long one here
    drains = f"{DRAINS.partition(';')[0]}.new; mv $nodes/$node.now.new $nodes/$node.now"
    site.node("n1", f"(sleep 0.5; {drains}) >/dev/null 2>&1 & exit 1")
    code, lines = site.run("--nodes=n1,n2")
    assert (code, "Slurm drained it because its prolog failed" in lines[-2]) == (1, True), lines
    assert "node n1 was drained by its prolog" in lines[-1]


def test_doctor_asks_no_other_node_after_first_idle_one_is_drained_by_its_prolog(site: Site) -> None:
    """Slurm drains a node whose prolog fails, whatever job it is for."""
    site.sinfo(NODES.replace("gpu:a100:4|idle", "gpu:a100:4|mixed"))
    for name in ("n1", "n2", "n4"):
        site.node(name, DRAINS)
    code, lines = site.run("--nodes=all")
    found = {line.split()[2].rstrip(":"): line for line in lines if line.split()[1] == "node"}
    assert (code, list(found)) == (1, ["n1", "n2", "n3", "n4"])
    assert found["n4"] == (
        "wrong  node n4: Slurm drained it because its prolog failed (Prolog error): /etc/slurm/prolog.d/* of "
        "slurm.conf is empty there, or has a file that cannot be executed or failed; put 00-keep and 50-ffdl of "
        "slurm-configs back, mode 755, then run: scontrol update NodeName=n4 State=RESUME"
    )
    for name in ("n1", "n2"):
        assert found[name] == (
            f"note   node {name}: not examined: node n4 was drained by its prolog; run again with --nodes={name} when "
            "that is mended"
        )
    assert found["n3"].startswith("note   node n3: not examined: Slurm has it as drained; ")
    assert (site.place / "calls").read_text().count("--nodelist=") == 1


def test_doctor_continues_after_first_node_drained_for_other_reason(site: Site) -> None:
    site.node("n1", 'echo "drained|Kill task failed" >$nodes/$node.now; echo srun: error: no >&2; exit 1')
    code, lines = site.run("--nodes=n1,n2")
    said = "wrong  node n1: no answer: srun: error: no; Slurm has it as drained: Kill task failed"
    assert (code, lines[-2:]) == (1, [said, "ok     node n2"])


@pytest.mark.parametrize(("prolog", "said"), [
    ("exit 3", "no answer: nothing; Slurm has it as idle"),
    ("echo 'srun: error: Unable to allocate resources: Invalid account or account/partition' >&2; exit 1",
     "no answer: srun: error: Unable to allocate resources: Invalid account"),
    ("exit 124", "no answer: its step did not end within 60 s; Slurm has it as idle"),
    (f"printf '{CAPABLE}' >$run/capabilities", "but its prolog made nothing: prolog.d/50-ffdl did not run there"),
    (f"{MADE}; cd $run/job-7; rm network; printf 'no network:\\nlist the slots\\n' >error; : >../capabilities",
     "it has the feature 'ffdl-network', but no network: list the slots"),
    (f"{MADE}; printf 'network=yes\\negress=no\\negress_problem=set it\\n' >$run/capabilities",
     "it has the feature 'ffdl-egress', but level egress is not there: set it"),
    (f"printf '{CAPABLE}' >$run/capabilities; {MADE.replace('/proc/self/ns/net', '$run/capabilities')}",
     "its prolog made a network that jobs do not see: where Slurm gives jobs mounts of their own"),
    (f"printf '{CAPABLE}' >$run/capabilities; {MADE}; PATH=/usr/bin:/bin", "apptainer is not on the PATH there"),
    (f"printf '{CAPABLE}' >$run/capabilities; {MADE}; rmdir $run/../scratch", "scratch_base of [backend.slurm]"),
])  # fmt: skip
def test_doctor_prefixes_each_node_problem_with_node_name(site: Site, prolog: str, said: str) -> None:
    site.node("n1", prolog)
    found = site.wrong("--nodes=n1")
    assert found and all(line.startswith("node n1: ") for line in found)
    assert said in " ".join(found)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("mechanism=vxlan", "mechanism=wireguard", "NETWORK_MECHANISM is not the same on all nodes"),
        ("prefix=10.200", "prefix=10.201", "NETWORK_PREFIX is not the same on all nodes"),
        ("secret=0a", "secret=0b", "the secret in the file NETWORK_SECRET (here its fingerprint) is not"),
    ],
)
def test_doctor_reports_network_settings_that_differ_between_nodes(
    site: Site, first: str, second: str, said: str
) -> None:
    for names, line in ((("n1", "n4"), first), (("n2",), second)):
        for name in names:
            site.node(name, f"printf '{CAPABLE}{line}\\n' >$run/capabilities; {MADE}")
    (found,) = site.wrong("--nodes=n[1-4]")
    assert found.startswith(f"networks of jobs: {said}")
    values = [line.partition("=")[2] for line in (first, second)]
    assert found.endswith(f"({values[0]}: n1, n4; {values[1]}: n2)")
    assert site.wrong("--nodes=n1,n4") == []


def test_doctor_reports_jobs_dir_missing_on_node(site: Site) -> None:
    away = 'for last; do :; done; set -- "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$last.elsewhere"'
    site.node("n1", f"printf '{CAPABLE}' >$run/capabilities; {MADE}; {away}")
    assert site.wrong("--nodes=n1") == [
        f"node n1: jobs_dir of the configuration, {site.place}/jobs, is not there: it must be on a shared file system"
    ]


def test_doctor_reports_missing_slurm_conf_settings_and_doubts_timeout(site: Site) -> None:
    site.config["Prolog[0]"] = site.config["Epilog[0]"] = "(null)"
    site.slurm_conf(PrologFlags="(null)", TaskPlugin="task/affinity", ConstrainDevices="no", SlurmdTimeout="60 sec")
    code, lines = site.run()
    said = " ".join(line for line in lines if line.startswith("wrong"))
    for part in ("Prolog is not set", "Epilog is not set", "PrologFlags is empty", "TaskPlugin has no task/cgroup"):
        assert part in said
    assert "cgroup.conf: ConstrainDevices must be yes" in said
    assert (code, said.count("slurm.conf.d/ffdl.conf of slurm-configs has it")) == (1, 4)
    doubts = [line for line in lines if line.startswith("note   slurm.conf: ")]
    assert len(doubts) == 1 and "slurm.conf: times: slurm.conf's SlurmdTimeout (60 s)" in doubts[0]


@pytest.mark.parametrize(
    ("key", "value", "noted"),
    [
        ("JobContainerType", "job_container/tmpfs", True),
        ("NamespaceType", "namespace/linux", True),
        ("JobContainerType", "job_container/none", False),
        ("JobContainerType", "(null)", False),
    ],
)
def test_doctor_notes_job_container_plugin_if_networks_are_offered(
    site: Site, key: str, value: str, noted: bool
) -> None:
    site.slurm_conf(**{key: value})
    code, lines = site.run()
    notes = [line for line in lines if line.startswith("note   slurm.conf: networks: ")]
    assert (code, [f"{key} is {value}" in line for line in notes]) == (0, [True] if noted else [])
    site.settings('network_feature = ""\n')
    assert not [line for line in site.run()[1] if value in line]


def test_doctor_requires_no_prolog_without_network_feature(site: Site) -> None:
    site.config["Prolog[0]"] = "(null)"
    site.slurm_conf()
    site.settings('network_feature = ""\n')
    assert site.wrong() == []
    assert "note   partition main: network_feature of [backend.slurm] is empty: no network level job" in site.run()[1]


@pytest.mark.parametrize("name", ["scontrol", "sinfo"])
def test_doctor_exits_69_without_slurm_commands(site: Site, name: str) -> None:
    (site.place / "bin" / name).unlink()
    site.monkeypatch.setenv("PATH", f"{site.place}/bin:/bin")
    code, (said,) = site.run("--nodes=all")
    assert (code, said.startswith(f"ffdl-admin: {name} cannot be run: ")) == (69, True), said


def test_doctor_reports_failure_or_unparsable_output_of_sinfo(site: Site) -> None:
    for printed in ("main*|1|n1|fast|idle", "Welcome to the login node"):
        site.program("sinfo", f"#!/bin/sh\necho '{printed}'\n")
        shown = f"sinfo printed no readable rows; it printed {printed!r}"
        assert site.wrong() == [f"slurm: the answer of sinfo cannot be read: {shown}"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("echo Welcome to the login node", "scontrol printed no configuration but 'Welcome to the login node'"),
        (
            "echo 'Access/permission denied' >&2; exit 1",
            "scontrol show config exited with status 1: Access/permission denied",
        ),
        ("", "Permission denied"),
    ],
)
def test_doctor_notes_slurm_conf_that_users_cannot_read_and_examines_the_rest(
    site: Site, lines: str, cause: str
) -> None:
    site.program("scontrol", f"#!/bin/sh\n{lines}\n")
    if not lines:
        (site.place / "bin" / "scontrol").chmod(0o644)
        site.monkeypatch.setenv("PATH", f"{site.place}/bin:/bin")
    code, found = site.run()
    notes = [line for line in found if line.startswith("note   slurm.conf: ")]
    assert code == 0 and len(notes) == 1 and cause in notes[0]
    assert "ok     partition urgent: network levels job and egress on its node" in found


def test_doctor_notes_row_of_sinfo_that_cannot_be_read_and_ignores_banner_and_footer(site: Site) -> None:
    site.sinfo(f"*** Welcome ***\n\n{NODES}main*|one|n9|fast|(null)|idle\nGood bye\n")
    code, found = site.run()
    (note,) = [line for line in found if line.startswith("note   slurm: ")]
    assert code == 0 and "1 row of sinfo's cannot be read" in note and "n9" in note


def test_doctor_reads_capabilities_file_of_own_node(site: Site) -> None:
    (site.place / "run").mkdir()
    file = site.place / "run" / "capabilities"
    file.write_text(
        "vxlan=yes\napptainer=no\napptainer_problem=add the slots\negress=no\negress_problem=not offered: x\n"
    )
    code, lines = site.run()
    assert (code, lines[-3:]) == (
        1,
        [
            "ok     this node: vxlan",
            "wrong  this node: apptainer: add the slots",
            "note   this node: egress: not offered: x",
        ],
    )
    file.write_text("network=no\nvalues=no\nvalues_problem=settings.py:21: NETWORK_SLOTS is '0'\negress=no\n")
    assert site.wrong() == ["this node: values: settings.py:21: NETWORK_SLOTS is '0'", "this node: egress"]
    file.unlink()
    site.monkeypatch.setattr("ffdl_slurm.doctor.cluster_checks.socket.gethostname", lambda: "n1.cluster")
    (found,) = site.wrong()
    assert "enable ffdl-network.service" in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the node try again")
def test_doctor_as_root_reruns_node_check_unless_others_can_write_it(site: Site) -> None:
    (site.place / "run").mkdir()
    file, programs = site.place / "run" / "capabilities", site.place / "programs"
    programs.mkdir(mode=0o755)
    check = programs / "check"
    check.write_text(f"#!/bin/sh\necho apptainer=yes >{file}\n")
    old = f"apptainer=no\napptainer_problem=old\nprograms={programs}\n"
    for mode, found in ((0o777, 1), (0o755, 0)):
        check.chmod(mode)
        file.write_text(old)
        assert len(site.wrong()) == found


def test_doctor_rejects_unknown_nodes_and_unusable_configuration(site: Site) -> None:
    code, lines = site.run("--nodes=n1,n9")
    assert (code, lines) == (2, ["ffdl-admin: Slurm has no node n9; it has n1, n2, n3, n4"])
    code, lines = site.run("--nodes=n[4-16]")
    assert (code, lines[0].endswith("n6, n7 and 2 more; it has n1, n2, n3, n4")) == (2, True), lines
    site.settings("fence_s = 'x'\n")
    assert site.run()[0] == 78
    (site.place / "config.toml").write_text('[backend]\ndefault = "local"\n')
    assert site.run()[0] == 69


def test_doctor_prints_json_with_verdict_per_item(site: Site) -> None:
    code, lines = site.run("--json", "--nodes=n1")
    told = json.loads("\n".join(lines))
    assert (code, told["schema"], told["backend"]) == (0, 1, "slurm")
    assert {"about": "node n1", "verdict": "ok", "text": "", "examined": True} in told["items"]
    code, lines = site.run("--json", "--nodes=n3")
    (item,) = (item for item in json.loads("\n".join(lines))["items"] if item["about"] == "node n3")
    assert (code, item["verdict"], item["examined"]) == (75, "note", False)


def test_parse_config_reads_key_without_value_as_empty() -> None:
    found = parse_config("Prolog =\nEpilog = /x\nPrologFlags= (null)\n")
    assert found == {"Prolog": "", "Epilog": "/x", "PrologFlags": ""}


ABLE = {"fuse": "yes", "fusermount": "yes", "rclone": "1.60.1", "mounts_epilog": "yes", "staging": "ffdl_batch=0.1.0"}
PYTHON = "/opt/ffdl/bin/python"
FUSE = os.access("/dev/fuse", os.R_OK | os.W_OK)


def without(*names: str, **changed: str) -> dict[str, str]:
    return {name: value for name, value in {**ABLE, **changed}.items() if name not in names}


def mounts(told: Mapping[str, Mapping[str, str]], mounting: Mounting = Mounting.AUTO) -> list[tuple[Verdict, str]]:
    items = data_items(told, mounting, PYTHON)
    return [(item.verdict, item.text) for item in items if item.about == "data mounts"]


def test_data_items_reports_ok_if_all_nodes_can_mount() -> None:
    assert data_items({"n1": ABLE, "n2": ABLE}, Mounting.AUTO, PYTHON) == [
        Item("staging", Verdict.OK),
        Item("data mounts", Verdict.OK, "on all 2 nodes that were asked"),
    ]
    assert data_items({}, Mounting.AUTO, "") == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (without("fuse"), "/dev/fuse is not there, or closed to this user,"),
        (without("fusermount"), "fusermount3 (package fuse3) is not installed"),
        (without("rclone"), "rclone is not installed"),
        (without(rclone=""), "rclone does not start"),
    ],
)
def test_data_items_judges_missing_mount_tools_by_data_mount_setting(told: dict[str, str], why: str) -> None:
    nodes = {"n1": ABLE, "n2": told, "n3": told}
    brought = f'{why} on n2, n3: data are brought there, as data_mount = "auto" has it'
    fails = f'{why} on n2, n3: jobs that read from stores fail there with S302, as data_mount = "always" has it'
    assert mounts(nodes) == [(Verdict.NOTE, brought)]
    assert mounts(nodes, Mounting.ALWAYS) == [(Verdict.WRONG, fails)]
    assert mounts(nodes, Mounting.NEVER) == []


def test_data_items_notes_missing_epilog_and_old_rclone() -> None:
    (first, second) = mounts({"n1": without("mounts_epilog", rclone="1.53.3-DEV"), "n2": ABLE}, Mounting.ALWAYS)
    assert first[0] is second[0] is Verdict.NOTE
    assert first[1].startswith("Epilog of slurm.conf has no 60-ffdl-mounts on n1: put that file of slurm-configs there")
    assert second[1].startswith("rclone 1.53.3-DEV on n1 does not check host keys: SFTP")


def test_data_items_reports_missing_or_broken_staging_program() -> None:
    told = {"n1": ABLE, "n2": without(staging="No module named 'ffdl_batch'"), "n3": without(staging="")}
    (one, other) = data_items(told, Mounting.NEVER, PYTHON)
    assert (one.about, one.verdict) == ("staging", Verdict.WRONG)
    assert one.text.startswith(f"{PYTHON} does not start it on n2 (No module named 'ffdl_batch'): name the interpreter")
    assert "on n3 (it printed nothing)" in other.text
    (note,) = data_items(told, Mounting.NEVER, "")
    assert (note.verdict, "are refused when they are submitted" in note.text) == (Verdict.NOTE, True)


def test_doctor_checks_staging_and_data_mounts_on_node(site: Site) -> None:
    """The step that is sent there, really run."""

    def said() -> list[str]:
        return [line for line in site.run("--nodes=n1")[1] if line[7:].startswith(("staging", "data mounts"))]

    (site.place / "epilogs").mkdir()
    hook = site.place / "epilogs" / "60-ffdl-mounts"
    site.slurm_conf(**{"Epilog[0]": f"{site.place}/epilogs/*"})
    site.program("rclone", "#!/bin/sh\necho rclone v1.60.1-DEV\necho '- os: debian'\n")
    site.program("fusermount3", "#!/bin/sh\n")
    site.settings(f'staging_python = "{sys.executable}"\n')
    lacks = "Epilog of slurm.conf has no 60-ffdl-mounts on n1" if FUSE else "/dev/fuse is not there"
    (staging, mounted) = said()
    assert staging == "ok     staging"
    assert mounted.startswith(f"note   data mounts: {lacks}"), mounted
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    site.settings('staging_python = "/nowhere/python"\n')
    (staging, mounted) = said()
    assert staging.startswith("wrong  staging: /nowhere/python does not start it on n1 (")
    assert mounted.startswith("ok     data mounts" if FUSE else "note   data mounts: /dev/fuse"), mounted
