"""The fake Slurm for ten thousand waiting jobs: sbatch and squeue in the place of those of tests/fakes.

What squeue answers lies ready in a file to which sbatch appends, so that both cost no more than a process, and what is
measured is the daemon. Each call leaves its command's name in the file `asked`. Everything else is the fake Slurm's.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ffdl_slurm.commands import QUEUE_FIELDS, SEPARATOR
from tests.benchmarks.place import Place

_TITLES = {
    "JobArrayID": "JOBID", "State": "STATE", "exit_code": "EXIT_CODE", "RestartCnt": "RESTART_COUNT",
    "SubmitTime": "SUBMIT_TIME", "StartTime": "START_TIME", "EndTime": "END_TIME", "NodeList": "NODELIST",
    "Reason": "REASON",
}  # fmt: skip
_SQUEUE = """\
cd {ready} || exit
echo squeue >>asked
for word; do
    case $word in
    --name=*) exec awk -F '|' -v names=",${{word#--name=}}," 'FNR == NR || index(names, "," $NF ",")' header lines ;;
    esac
done
exec cat header lines
"""
_SBATCH = """\
for script; do :; done
cd {ready} || exit
echo sbatch >>asked
exec 9>>lock
flock 9 || exit
exec awk -v now="$(date +%s)" -f accept.awk "$script"
"""
_ACCEPT = """\
function add(number) { print number "|PENDING|0:0|0|" now "|N/A|N/A||Resources|" name >>"lines" }
/^#SBATCH --job-name=/ { name = substr($2, length("--job-name=") + 1) }
/^#SBATCH --array=/ { tasks = substr($2, length("--array=") + 1) }
END {
    getline id <"next"
    close("next")
    print id + 1 >"next"
    if (tasks == "") add(id)
    sub(/%.*/, "", tasks)
    count = split(tasks, parts, ",")
    for (i = 1; i <= count; i++) {
        if (parts[i] !~ /^[0-9]+(-[0-9]+)?$/) { print "sbatch: error: cannot read " parts[i] >"/dev/stderr"; exit 1 }
        ends = split(parts[i], range, "-")
        for (task = range[1]; task <= range[ends]; task++) add(id "_" task)
    }
    print id
}
"""


class ReadySlurm:
    """Both commands in one place. `directory` holds what they read and write."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.directory = place.base / "ready"
        self.directory.mkdir()
        titles = [_TITLES[field] for field in QUEUE_FIELDS]
        files = {
            "header": SEPARATOR.join([*titles, "NAME"]) + "\n",
            "lines": "",
            "next": "101\n",
            "accept.awk": _ACCEPT,
        }
        for name, text in files.items():
            (self.directory / name).write_text(text, encoding="utf-8")
        place.wrap("squeue", _SQUEUE.format(ready=self.directory))
        place.wrap("sbatch", _SBATCH.format(ready=self.directory))

    def listed(self) -> int:
        """How many jobs and tasks squeue lists."""
        return _count_lines(self.directory / "lines")

    def asked(self) -> Counter[str]:
        """How often each command was called so far: squeue, sbatch, and all others together."""
        path = self.directory / "asked"
        found = Counter(path.read_text(encoding="utf-8").split() if path.exists() else ())
        found["others"] = _count_lines(self._place.slurm / "calls.log")
        return found


def _count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
