"""sbatch's options mean to ffdl-submit what they mean to sbatch; what a dry run prints is what is sent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.runtimes.rendezvous import first_port
from ffdl_batch.services.backends.site_facts import YOUNG_S
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.topology import FEATURES
from tests.cluster.trainings import let_go, native_id, saver_model, training, until_logged

RESERVATION = "rigtomorrow"
FEATURE = "rigfast"
COMMENT = 'it\'s $(touch canary) "quoted" %j #not-a-comment'
LONG = (
    "--time=0-00:02:00",
    "--partition=main,short",
    "--account=ffdl",
    "--qos=high",
    f"--constraint={FEATURE}",
    f"--reservation={RESERVATION}",
    "--nodelist=n1",
    "--exclude=n2",
    "--gres=gpu:v100:2",
    "--cpus-per-task=3",
    "--mem=300M",
    "--begin=2040-01-01T12:34:00",
    "--requeue",
    "--signal=USR1@90",
    "--mail-type=END,FAIL",
    "--mail-user=alice@example.org",
    f"--comment={COMMENT}",
    "--hold",
)
SHORT = ("-t", "90", "-p", "main", "-A", "ffdl", "-q", "normal", "-C", FEATURE, "-w", "n1", "-x", "n2,n3", "-c", "2",
         "-b", "2041-02-03", "-H", "--no-requeue")  # fmt: skip
SAME = (
    "Account", "Comment", "CPUs/Task", "Dependency", "DerivedExitCode", "EligibleTime", "ExcNodeList", "Features",
    "JobState", "MailType", "MailUser", "MinCPUsNode", "MinMemoryNode", "MinTmpDiskNode", "Nice", "NtasksPerN:B:S:C",
    "NumCPUs", "NumNodes", "NumTasks", "OverSubscribe", "Partition", "Priority", "QOS", "Reason", "ReqNodeList",
    "ReqTRES", "Requeue", "Reservation", "StartTime", "TimeLimit", "TimeMin", "TresPerNode", "UserId",
)  # fmt: skip
"""Fields of ``scontrol show job`` that depend on what was asked for alone; those of 26.05 that a job may have."""
REPORT = "python3 -c 'import json, os; print(\"ENV\" + json.dumps(dict(os.environ)))'"
SHELL = {
    "MARK_A": "first 'quoted' $(touch canary)",
    "MARK_B": "second",
    # Users of Apptainer have these in their profiles; they steer the container runtime and are no learner's business.
    "APPTAINER_CACHEDIR": "/home/alice/.apptainer-cache",
    "SLURM_JOB_ID": "1",
    "SBATCH_DEBUG": "0",
}


@pytest.fixture(scope="module", autouse=True)
def site(cluster: Cluster) -> Iterator[None]:
    """A feature and a reservation to ask for."""

    def set_features(*names: str) -> None:
        text = ",".join(names)
        cluster.scontrol("update", "NodeName=n1", f"AvailableFeatures={text}", f"ActiveFeatures={text}")

    set_features(*FEATURES, FEATURE)
    made = ["scontrol", "create", f"ReservationName={RESERVATION}", "StartTime=2040-01-01", "Duration=1-0",
            "Users=alice", "Nodes=n1"]  # fmt: skip
    cluster.run("ctl", made)
    time.sleep(YOUNG_S)  # what a daemon was told just before counts for as long
    yield
    cluster.run("ctl", ["scancel", "-u", "alice", "--state=PENDING"])
    cluster.run("ctl", ["scontrol", "delete", f"ReservationName={RESERVATION}"])
    set_features(*FEATURES)


@pytest.fixture(scope="module")
def exported(alice: Person, site: None) -> dict[str, str]:
    """Jobs that print their environment, by the value of --export; all submitted from the same shell."""
    model = alice.model("empty", {"README": "nothing here\n"})
    manifest = alice.manifest("environment", REPORT)
    texts = ("", "NONE", "ALL", "MARK_A,EXTRA=a=b c,UNSET_HERE")
    argv = ["ffdl-submit", "--parsable"]
    return {
        text: alice.run(*argv, *([f"--export={text}"] if text else []), manifest, model, env=SHELL).stdout.strip()
        for text in texts
    }


@pytest.fixture(scope="module")
def signalled(alice: Person) -> str:
    """A job that asks for a signal before its limit, and ends with that; started long before it is looked at.

    Slurm may send it 30 s early: the learner has had 45 s to begin by then, and would not hear it before.
    """
    trap = "trap 'echo signalled; exit 0' USR1; echo ready; while :; do sleep 0.2; done"
    return alice.start("signalled", trap, "--time=2", "--signal=USR1@45")


@pytest.fixture(scope="module")
def parent(alice: Person, site: None, signalled: str) -> tuple[str, str]:
    """What to depend on: a training that has completed, and a held job of sbatch's."""
    native = alice.run("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip()
    completed = alice.start("parent", "true")
    assert alice.finish(completed)["state"] == "COMPLETED"
    return completed, native


def compare(alice: Person, ours: tuple[str, ...], theirs: tuple[str, ...]) -> dict[str, str]:
    """Submit with both commands; the fields of our job, equal to sbatch's."""
    job_id = alice.start("options", "true", *ours)
    plain = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--wrap=true"]
    native = alice.run("sbatch", "--parsable", *theirs, *plain).stdout.strip()
    job = alice.until(job_id, {"QUEUED"})
    expected, found = alice.batch_fields(native), alice.batch_fields(job["native_id"])
    assert {name: found.get(name) for name in SAME} == {name: expected.get(name) for name in SAME}
    assert found["JobName"] == f"{job_id}-1"
    return found


def test_submit_long_options_match_sbatch_job_fields(alice: Person, parent: tuple[str, str]) -> None:
    ours, native = parent
    given = (*LONG, f"--dependency=afterany:{ours},afterok:{native}")
    fields = compare(alice, given, (*LONG, f"--dependency=afterok:{native}"))
    assert fields["Dependency"] == f"afterok:{native}(unfulfilled)"
    assert (fields["JobState"], fields["Priority"], fields["Requeue"]) == ("PENDING", "0", "1")
    assert (fields["Partition"], fields["Account"], fields["QOS"]) == ("main,short", "ffdl", "high")
    assert (fields["ReqNodeList"], fields["ExcNodeList"], fields["Features"]) == ("n1", "n2", FEATURE)
    assert (fields["TresPerNode"], fields["CPUs/Task"]) == ("gres/gpu:v100:2", "3")
    assert (fields["MinMemoryNode"], fields["TimeLimit"]) == ("300M", "00:02:00")
    assert (fields["MailUser"], fields["MailType"]) == ("alice@example.org", "END,FAIL")
    assert (fields["Comment"], fields["EligibleTime"]) == (COMMENT, "2040-01-01T12:34:00")
    assert fields["Reservation"] == RESERVATION


@pytest.mark.full
def test_submit_short_options_match_sbatch_job_fields(alice: Person, parent: tuple[str, str]) -> None:
    _, native = parent
    # What the manifest asks for besides (256 MiB, one GPU) is said to sbatch too; -G counts per learner here.
    theirs = (*SHORT, "--comment=my name", "--mem=256M", "--gres=gpu:v100:2", "-d", f"after:{native}")
    fields = compare(alice, (*SHORT, "-G", "v100:2", "-d", f"after:{native}", "-J", "my name"), theirs)
    assert (fields["TimeLimit"], fields["Requeue"], fields["QOS"]) == ("01:30:00", "0", "normal")
    assert fields["Dependency"] == f"after:{native}(unfulfilled)"


WHOLE = (
    "--exclusive=user",
    "--nice=5",
    "--mem=0",
    "--time=UNLIMITED",
    "--comment=whole",
    "--partition=main",
    "--segment=1",
)


@pytest.mark.full
def test_submit_exclusive_nice_whole_memory_and_no_limit_match_sbatch(alice: Person) -> None:
    fields = compare(alice, (*WHOLE, "-G", "v100:2", "--hold"), (*WHOLE, "--gres=gpu:v100:2", "--hold"))
    assert (fields["Nice"], fields["TimeLimit"], fields["MinMemoryNode"]) == ("5", "UNLIMITED", "0")
    assert fields["OverSubscribe"] == "NO"
    done = alice.finish(alice.start("whole", "echo $SLURM_MEM_PER_NODE done", *WHOLE))
    assert done["state"] == "COMPLETED", done


@pytest.mark.full
def test_dependent_job_waits_for_continuation_of_its_parent(alice: Person) -> None:
    slow = "batch: {checkpoint: {grace_s: 60}, env: {PACE: '0.2', STEPS: '120', HOLD: '20'}}"
    first = alice.submit(training(alice, "goes-on", extra=slow), saver_model(alice), "--time=10")
    second = alice.start("after-it", "echo began", f"--dependency=afterok:{first}")
    until_logged(alice, first, "step 5")
    alice.run("scancel", "--signal=URG", native_id(alice, first))
    until_logged(alice, first, "step", attempt=2)
    waiting = alice.show(second)
    assert (waiting["state"], waiting["native_id"]) == ("PENDING", ""), waiting
    assert waiting["pending_reason"].startswith(f"Dependency: {first} is ")
    let_go(alice, first)
    one, two = alice.finish_all([first, second])
    assert (one["state"], two["state"]) == ("COMPLETED", "COMPLETED"), (one, two)
    assert [attempt["number"] for attempt in one["attempts"]] == [1, 2]
    assert two["timestamps"]["DEPLOYING"] >= one["timestamps"]["COMPLETED"]


@pytest.mark.full
def test_dependency_afterok_fails_and_afternotok_runs_when_parent_fails(alice: Person) -> None:
    first = alice.start("fails", "sleep 2; exit 3")
    never, instead = (
        alice.start(kind, "echo began", f"--dependency={kind}:{first}") for kind in ("afterok", "afternotok")
    )
    failed, refused, done = alice.finish_all([first, never, instead])
    assert (failed["state"], done["state"]) == ("FAILED", "COMPLETED"), (failed, done)
    assert (refused["state"], refused["error_code"], refused["attempts"]) == ("FAILED", "C105", []), refused
    assert f"afterok:{first} cannot come true, {first} is FAILED (C201)" in refused["message"]


@pytest.mark.full
def test_submit_job_name_option_overrides_manifest_name(alice: Person) -> None:
    job_id = alice.start("in the manifest", "true", "--hold", "-J", "on the command line")
    assert alice.show(job_id)["name"] == "on the command line"
    assert alice.show(job_id)["sources"]["name"] == "command line"


@pytest.mark.full
def test_submit_applies_sbatch_variables_below_manifest_and_options(alice: Person) -> None:
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("variables", "true")
    env = {"SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1:30", "SBATCH_GRES": "gpu:4", "SBATCH_QOS": "high"}
    argv = ["ffdl-submit", "--parsable", "--hold", "--qos=normal", manifest, model]
    job = alice.until(alice.run(*argv, env=env).stdout.strip(), {"QUEUED"})
    fields = alice.batch_fields(job["native_id"])
    # The manifest names one GPU and wins over the variable; --qos wins over both.
    found = tuple(fields[name] for name in ("Partition", "TimeLimit", "TresPerNode", "QOS"))
    assert found == ("short", "00:02:00", "gres/gpu:1", "normal")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--nodes=2"], "--nodes"),
        (["-N", "2"], "-N (--nodes)"),
        (["--ntasks", "4"], "--ntasks"),
        (["--error=x"], "--error"),
        (["-D", "/tmp"], "-D (--chdir)"),
        (["--uid=0"], "--uid"),
    ],
)
@pytest.mark.full
def test_submit_rejects_unsupported_sbatch_option_by_name(alice: Person, given: list[str], named: str) -> None:
    before = alice.job_ids()
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("refused", "true")
    done = alice.run("ffdl-submit", *given, manifest, model, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"sbatch's {named} is not supported: " in done.stderr
    assert alice.job_ids() == before


@pytest.mark.full
def test_name_of_job_is_in_squeue_sacct_and_output_path_relative_to_submission_directory(alice: Person) -> None:
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("output", "echo in the file")
    alice.run("mkdir", "-p", "with blank")
    argv = ["ffdl-submit", "--parsable", "-J", "my run", "--output=out-%x-%j.txt", "--hold", manifest, model]
    job_id = alice.run(*argv, cwd=f"{alice.home}/with blank").stdout.strip()
    native = alice.until(job_id, {"QUEUED"})["native_id"]
    assert alice.run("squeue", "-h", "-j", native, "-o", "%j|%k").stdout == f"{job_id}-1|my run\n"
    alice.run("scontrol", "release", native)
    assert alice.finish(job_id)["state"] == "COMPLETED"
    assert "in the file\n" in alice.read(f"{alice.home}/with blank/out-my run-{native}.txt")
    assert alice.sacct(native, "JobName", "Comment") == [f"{job_id}-1", "my run"]
    assert json.loads(alice.run("ffdl", "show", "--json", native).stdout)["job"]["id"] == job_id


@pytest.mark.full
def test_wrap_with_follow_runs_command_prints_its_output_and_exits_with_its_status(alice: Person) -> None:
    place = alice.model("wrapped", {"train.py": "print('trained')\n"})
    command = "python3 train.py; echo it\\'s $((6 * 7)); exit 3"
    argv = ["ffdl-submit", "-f", "--mem=256M", "-c1", "-J", "one line", "--wrap", command]
    done = alice.run(*argv, cwd=place, check=False)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (3, ["trained", "it's 42"]), done
    job = alice.show(done.stdout.split()[3])
    assert (job["name"], job["state"], job["exit_code"]) == ("one line", "FAILED", 3)
    newest = alice.run("ffdl", "logs")
    assert (newest.stdout, newest.stderr) == ("trained\nit's 42\n", f"ffdl: {job['id']} is the newest job\n")


# ------------------------------------------------------------------------------------------------ dry run


def sections(text: str) -> dict[str, str]:
    """A printed plan by its headings."""
    parts = re.split(r"^### (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def pair(alice: Person) -> tuple[dict[str, str], dict[str, Any]]:
    """What a dry run printed, with the id of the job that was submitted after it and the ports that follow from it, and
    that job."""
    nasty = 'echo "it\'s {x} $HOME %j";\n' + REPORT
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("dry", nasty)
    argv = ["ffdl-submit", "--export=MARK_A,MARK_B", "--time=3", "--comment", COMMENT, "-w", "n2"]
    trees = ("find", f"{alice.state}/jobs", f"{alice.state}/models", "-maxdepth", "1")
    before, files = alice.job_ids(), alice.run(*trees).stdout
    queue = alice.queue()
    dry = alice.run(*argv, "--dry-run", manifest, model, env=SHELL)
    assert alice.queue() <= queue
    assert (alice.job_ids(), alice.run(*trees).stdout) == (before, files)
    job = alice.finish(alice.run(*argv, "--parsable", manifest, model, env=SHELL).stdout.strip())
    assert job["state"] == "COMPLETED", job
    (placeholder,) = set(re.findall(r"training-[0-9a-z]{9}", dry.stdout))
    ports = str(first_port(placeholder)), str(first_port(job["id"]))
    return sections(dry.stdout.replace(placeholder, job["id"]).replace(*ports)), job


def test_dry_run_prints_batch_script_launch_and_environment_files(
    alice: Person, pair: tuple[dict[str, str], dict[str, Any]]
) -> None:
    printed, job = pair
    attempt = f"{job['job_dir']}/attempt-1"
    assert printed["batch script"] == alice.read(f"{attempt}/script.sh")
    assert printed["file launch.json (mode 0600)"] == alice.read(f"{attempt}/launch.json")
    assert printed["file environment.json (mode 0600)"] == alice.read(f"{attempt}/environment.json")


def test_dry_run_prints_submit_command_and_script_recorded_by_slurm(
    alice: Person, pair: tuple[dict[str, str], dict[str, Any]]
) -> None:
    printed, job = pair
    (sent,) = alice.sacct(job["native_id"], "SubmitLine")
    assert printed["submit command"] == f"{sent}\n"
    assert printed["batch script"] == alice.run("scontrol", "write", "batch_script", job["native_id"], "-").stdout


def test_dry_run_prints_learner_arguments_and_environment(
    alice: Person, pair: tuple[dict[str, str], dict[str, Any]]
) -> None:
    printed, job = pair
    launch = json.loads(alice.read(f"{job['job_dir']}/attempt-1/launch.json"))
    (argv,) = [text for title, text in printed.items() if title.startswith("learner command")]
    split = alice.run("bash", "-c", f'args=({argv}); printf "%s\\0" "${{args[@]}}"').stdout.split("\0")[:-1]
    names = {name: f"{{{name}}}" for text in launch["learner"]["argv"] for name in re.findall(r"(?<!{){(\w+)}", text)}
    assert split == [fill(text, names) for text in launch["learner"]["argv"]]
    line = next(line for line in alice.logs(job["id"]).splitlines() if line.startswith("ENV"))
    seen = json.loads(line.removeprefix("ENV"))
    promised = alice.run("bash", "-c", f"env -i {printed['environment'].replace(chr(10), ' ')} env -0").stdout
    for name, _, value in (entry.partition("=") for entry in promised.split("\0")[:-1]):
        assert seen[name] == value or re.search(r"\{\w+\}", value), (name, value, seen.get(name))
    assert seen["MARK_A"] == SHELL["MARK_A"]


def test_submit_test_only_prints_sbatch_estimate_without_submission(alice: Person, pair: object) -> None:
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("trial", "true")
    before, queue = alice.job_ids(), alice.queue()
    done = alice.run("ffdl-submit", "-Q", "--test-only", manifest, model)
    assert done.stdout == ""
    sentence = r"ffdl-submit: Job \d+ to start at \S+ a? ?using 1 processors on nodes n[123] in partition main\n"
    assert re.fullmatch(sentence, done.stderr), done.stderr
    assert alice.queue() <= queue and alice.job_ids() == before
    refused = alice.run("ffdl-submit", "--test-only", "--account=nobodys", manifest, model, check=False)
    assert refused.returncode == 78 and "Invalid account" in refused.stderr


# ------------------------------------------------------------------------------------------ what learners see


@pytest.fixture(scope="module")
def environments(alice: Person, exported: dict[str, str]) -> dict[str, dict[str, str]]:
    """The environment that each learner saw."""
    found = {}
    for text, job in zip(exported, alice.finish_all(list(exported.values())), strict=True):
        assert job["state"] == "COMPLETED", (text, job)
        line = next(line for line in alice.logs(job["id"]).splitlines() if line.startswith("ENV"))
        found[text] = json.loads(line.removeprefix("ENV"))
    return found


@pytest.mark.parametrize("text", ["", "NONE"])
@pytest.mark.full
def test_export_default_or_none_passes_no_shell_variable_to_learner(
    environments: dict[str, dict[str, str]], text: str
) -> None:
    assert not {"MARK_A", "MARK_B"} & environments[text].keys()


@pytest.mark.full
def test_export_all_passes_shell_variables_except_slurm_and_apptainer(environments: dict[str, dict[str, str]]) -> None:
    seen = environments["ALL"]
    assert (seen["MARK_A"], seen["MARK_B"]) == (SHELL["MARK_A"], SHELL["MARK_B"])
    assert seen.get("APPTAINER_CACHEDIR") is None and seen.get("SLURM_JOB_ID") is None


@pytest.mark.full
def test_export_list_passes_only_named_variables(environments: dict[str, dict[str, str]]) -> None:
    seen = environments["MARK_A,EXTRA=a=b c,UNSET_HERE"]
    assert (seen["MARK_A"], seen["EXTRA"]) == (SHELL["MARK_A"], "a=b c")
    assert "MARK_B" not in seen and "UNSET_HERE" not in seen


def test_submit_signal_option_delivers_signal_before_time_limit(alice: Person, signalled: str) -> None:
    job = alice.finish(signalled)
    assert alice.logs(job["id"]).splitlines() == ["ready", "signalled"]
    assert job["state"] == "COMPLETED", job


@pytest.mark.full
def test_job_fails_with_c203_at_time_limit_and_keeps_partial_results(alice: Person) -> None:
    command = "echo begun; echo half > $RESULT_DIR/partial.txt; sleep 300"
    job = alice.finish(alice.start("overdue", command, "--time=1"))
    assert (job["state"], job["error_code"]) == ("FAILED", "C203"), job
    assert "time limit" in job["message"] and "ask for more time" in job["cure"]
    assert alice.logs(job["id"]).splitlines() == ["begun"], (job, alice.run("ffdl", "events", job["id"]).stdout)
    assert alice.read(f"{job['results']}/partial.txt") == "half\n"
    # It was warned and did not react. It is ended shortly before the limit, so that what it left can be stored; Slurm,
    # which looks every half minute, may come first.
    assert alice.accounted(job["native_id"], "State", "ExitCode") in (["FAILED", "124:0"], ["TIMEOUT", "0:0"])
