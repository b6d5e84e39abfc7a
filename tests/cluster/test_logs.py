"""ffdl logs on a running and on an ended job, and what Ctrl-C does."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pytest

from tests.cluster.executions import let_go
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

pytestmark = pytest.mark.full

TICKS = 12
COMMAND = (
    f"for i in $(seq {TICKS}); do [ $i -lt {TICKS} ] || until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done; "
    "echo tick $i of $LEARNER_ID; sleep 0.5; done; printf unfinished"
)
"""The last tick comes when all that has to be seen before was."""


@dataclass(frozen=True)
class Followed:
    """A job of two learners that was followed from its beginning."""

    job_id: str
    first: str
    state_at_first: str
    text: str
    code: int
    detached: str
    detached_code: int
    state_after_detach: str


@dataclass
class Follower:
    """`ffdl logs -f` in the background; its own process id on the node is its first line."""

    process: subprocess.Popen[str]
    pid: int = 0

    @property
    def pipe(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


def follow(alice: Person, job_id: str) -> Follower:
    """Start to follow."""
    follower = Follower(alice.popen("sh", "-c", 'echo $$; exec ffdl logs -f "$0"', job_id))
    follower.pid = int(follower.pipe.readline())
    return follower


def first_lines(follower: Follower) -> list[str]:
    """Of the job, up to the first of the second learner; the command may have said before that it waits for one."""
    lines: list[str] = []
    while len({line[:3] for line in lines}) < 2:
        line = follower.pipe.readline()
        assert line, lines
        if "has no output yet; waiting for it" not in line:
            lines.append(line)
    return lines


@pytest.fixture(scope="module")
def followed(cluster: Cluster, alice: Person) -> Iterator[Followed]:
    """Follow a job to its end, and once more only until a Ctrl-C."""
    job_id = alice.start("ticks", COMMAND, learners=2)
    followers = [follow(alice, job_id), follow(alice, job_id)]
    try:
        whole, short = followers
        first = first_lines(whole)
        state_at_first = alice.until(job_id, {"PROCESSING"})["state"]
        first_lines(short)
        alice.run("kill", "-INT", str(short.pid))
        detached = short.pipe.read()
        state_after_detach = alice.until(job_id, {"PROCESSING"})["state"]
        let_go(alice, job_id)
        text = whole.pipe.read()
        codes = [follower.process.wait(timeout=300) for follower in followers]
    finally:
        for follower in followers:
            cluster.kill(follower.process)
    alice.finish(job_id)
    text = "".join(first) + text
    yield Followed(job_id, first[0], state_at_first, text, codes[0], detached, codes[1], state_after_detach)


def ticks(learner: int, first: int = 1, mark: str = "") -> list[str]:
    """The lines of one learner."""
    return [*(f"{mark}tick {i} of {learner}" for i in range(first, TICKS + 1)), f"{mark}unfinished"]


def test_logs_follow_prints_lines_while_job_runs(followed: Followed) -> None:
    assert re.fullmatch(r"\[[12]\] tick 1 of [12]\n", followed.first)
    assert followed.state_at_first == "PROCESSING"


def test_logs_follow_prints_every_line_and_exits_0_when_job_ends(followed: Followed) -> None:
    assert followed.code == 0
    lines = followed.text.splitlines()
    assert sorted(lines) == sorted(ticks(1, mark="[1] ") + ticks(2, mark="[2] "))
    for learner in (1, 2):
        mark = f"[{learner}] "
        assert [line for line in lines if line.startswith(mark)] == ticks(learner, mark=mark)


def test_logs_follow_interleaves_lines_of_both_learners(followed: Followed) -> None:
    """Both ran at once, and their last lines came when first ones of both had been seen."""
    lines = followed.text.splitlines()
    assert lines.index("[2] tick 1 of 2") < lines.index(f"[1] tick {TICKS} of 1")
    assert lines.index("[1] tick 1 of 1") < lines.index(f"[2] tick {TICKS} of 2")


def test_logs_follow_detaches_on_ctrl_c_while_job_continues(alice: Person, followed: Followed) -> None:
    assert followed.detached_code == 130
    assert f"detached; {followed.job_id} continues" in followed.detached
    assert followed.state_after_detach == "PROCESSING"
    assert alice.show(followed.job_id)["state"] == "COMPLETED"


def test_logs_follow_prints_all_lines_of_ended_job(alice: Person, followed: Followed) -> None:
    lines = alice.logs(followed.job_id, "-f").splitlines()
    assert sorted(lines) == sorted(ticks(1, mark="[1] ") + ticks(2, mark="[2] "))


def test_logs_learner_option_prints_lines_of_one_learner(alice: Person, followed: Followed) -> None:
    assert alice.logs(followed.job_id, "--learner=2").splitlines() == ticks(2)


def test_logs_by_learner_option_groups_lines_by_learner(alice: Person, followed: Followed) -> None:
    expected = ticks(1, mark="[1] ") + ticks(2, mark="[2] ")
    assert alice.logs(followed.job_id, "--by-learner").splitlines() == expected


def test_logs_tail_option_limits_lines_per_learner(alice: Person, followed: Followed) -> None:
    assert alice.logs(followed.job_id, "--tail=2", "--learner=1").splitlines() == ticks(1)[-2:]
    assert sorted(alice.logs(followed.job_id, "--tail=1").splitlines()) == ["[1] unfinished", "[2] unfinished"]
    assert alice.logs(followed.job_id, "--tail=0") == ""


def test_logs_since_option_filters_lines_by_time(alice: Person, followed: Followed) -> None:
    lines = [json.loads(line)["line"] for line in alice.logs(followed.job_id, "--json", "--learner=1").splitlines()]
    assert [line["line"] for line in lines] == ticks(1)
    times = [line["at"] for line in lines]
    assert None not in times and times == sorted(times)
    assert times[-1] - times[0] >= 4  # of 6 s; the times are those of the lines, not of the reading
    later = alice.logs(followed.job_id, f"--since={times[6]:.3f}", "--learner=1").splitlines()
    assert later == [line["line"] for line in lines if line["at"] >= round(times[6], 3)]
    assert alice.logs(followed.job_id, f"--since={times[-1] + 1000:.3f}") == ""
    assert len(alice.logs(followed.job_id, "--since=1h").splitlines()) == 2 * len(lines)


def test_loglines_prints_numbered_page_of_lines_in_ffdl_format(alice: Person, followed: Followed) -> None:
    lines = alice.run("ffdl", "loglines", followed.job_id, "--pos=3", "--pagesize=2").stdout.splitlines()
    assert [re.fullmatch(r"(\d+) \d{13} (.*)", line).groups() for line in lines] == [  # type: ignore[union-attr]
        ("3", "tick 3 of 1"),
        ("4", "tick 4 of 1"),
    ]
    last = alice.run("ffdl", "loglines", followed.job_id, "--pos=-1", "--learner=2").stdout
    assert re.fullmatch(rf"{TICKS + 1} \d{{13}} unfinished\n", last)


def test_logs_report_unknown_job(alice: Person) -> None:
    done = alice.run("ffdl", "logs", "training-00000000z", check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "ffdl: there is no job training-00000000z (ffdl list shows your jobs)\n",
    )


def test_logs_grep_options_select_matching_lines_and_context(alice: Person, followed: Followed) -> None:
    lines = alice.logs(followed.job_id, "--grep", r"tick (3|7) of \d", "--learner=1").splitlines()
    assert lines == ["tick 3 of 1", "tick 7 of 1"]
    lines = alice.logs(followed.job_id, "-F", "-g", "UNFINISHED", "-i", "-B", "1", "--learner=2").splitlines()
    assert lines == [f"tick {TICKS} of 2", "unfinished"]


def test_learner_log_is_truncated_at_size_limit_and_keeps_last_line(cluster: Cluster, alice: Person) -> None:
    """By the defaults: 64 MiB at any speed, and 1 MiB a second from then on."""
    job_id = alice.start("flood", "yes $(printf '%0120d' 7) | head -c 1000000000; echo; echo the last word; exit 3")
    job = alice.until(job_id, {"FAILED"}, 600)
    assert (job["exit_code"], job["log_tail"][-1]) == (3, "the last word")
    size = int(alice.run("du", "-sb", f"{job['job_dir']}/attempt-1/logs/learner-1").stdout.split()[0])
    printed_s = job["timestamps"]["STORING"] - job["timestamps"]["PROCESSING"]
    assert 60e6 < size < 120e6 + 1.1e6 * printed_s, "of 1 GB"
    assert alice.logs(job_id, "--tail=1") == "the last word\n"
    told = alice.logs(job_id, "--grep", "left out here").splitlines()
    assert told and all(line.startswith("[ffdl: ") for line in told)
