"""Parse the output of Slurm's commands. Pure. Each parser belongs to one argv of :mod:`ffdl_slurm.commands`.

Sites print banners (module systems, message of the day) on standard output. Text before the header is ignored, and text
after it must parse. Output without a header, or that ends in the middle of a line, is :class:`Garbled`. It must not be
taken as proof that a job does not exist.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import ACCOUNT_FIELDS, EXCLUDED_FIELDS, QUEUE_FIELDS, SEPARATOR, is_job_id
from ffdl_slurm.observing.job_states import has_nowhere_to_run, interpret_state, is_held_for_good
from ffdl_slurm.output_text import begin

_PARSABLE_ID = re.compile(r"(\d+)(?:;[^\s;]+)?", re.ASCII)
_JOB_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[([^\]]*)\]?))?(?:\+\d+)?")
_QUEUE_COLUMNS = len(QUEUE_FIELDS) + 1


class Garbled(ValueError):
    """Output that the command does not print."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, or some elements of an array, as Slurm lists it."""

    job: str
    tasks: str | None
    """None if it is no array."""
    native: NativeId | None
    """The id; None for a range of elements."""
    observation: Observation

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.observation.name

    @property
    def is_cut(self) -> bool:
        """Whether its list of elements is cut off."""
        return self.native is None and "..." in (self.tasks or "")

    def native_ids(self, wanted: Sequence[str] = ()) -> list[NativeId]:
        """Return the ids of this record. Of a range of elements, return only those that are `wanted`."""
        if self.native is not None:
            return [self.native]
        ranges = _read_ranges(self.tasks or "")
        return [
            NativeId(self.job, task)
            for task in wanted
            if task.isdigit() and any(int(task) in indexes for indexes in ranges)
        ]


@lru_cache(maxsize=1024)
def _read_ranges(text: str) -> tuple[range, ...]:
    """Return the indexes of a list such as ``0-9:2,11%4``; of a list that is cut off, those that can be read."""
    found = []
    for part in text.split("%", maxsplit=1)[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            found.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    return tuple(found)


class OddRows(Garbled):
    """Output with rows that cannot be read. `records` are the others. They do not prove that a job does not exist,
    because it may be the subject of an unread row."""

    def __init__(self, message: str, records: Sequence[JobRecord]) -> None:
        super().__init__(message)
        self.records = tuple(records)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as printed. Every field is text; "" if the command does not print it."""

    number: str
    name: str
    state: str
    exit_code: str = ""
    restarts: str = ""
    submitted: str = ""
    started: str = ""
    ended: str = ""
    nodes: str = ""
    reason: str = ""


def parse_squeue(text: str) -> list[JobRecord]:
    """Parse the output of :func:`ffdl_slurm.commands.squeue_argv`. Raises Garbled, OddRows."""
    return _read_all(read_lines(text, _QUEUE_COLUMNS, "squeue", ("JOBID", "STATE")), parse_queue_row)


def _read_all(lines: Sequence[str], read: Callable[[str], JobRecord]) -> list[JobRecord]:
    """Read each line that may be a row. Raises OddRows, and Garbled if no row can be read."""
    found: list[JobRecord] = []
    odd: list[Garbled] = []
    for line in filter(may_be_row, lines):
        try:
            found.append(read(line))
        except Garbled as error:
            odd.append(error)
    if odd and not found:
        raise odd[0]
    if odd:
        raise OddRows(f"{counted(len(odd), 'row')} among {len(lines)} cannot be read; the first: {odd[0]}", found)
    return found


@lru_cache(maxsize=32_768)  # few lines change between two listings
def parse_queue_row(line: str) -> JobRecord:
    """Return the record of a line of :func:`ffdl_slurm.commands.squeue_argv`. Raises Garbled."""
    row = split_row(line, _QUEUE_COLUMNS, "squeue")
    number, state, exit_code, restarts, submitted, started, ended, nodes, reason, name = row
    return parse_row(JobRow(number, name, state, exit_code, restarts, submitted, started, ended, nodes, reason))


def parse_sacct(text: str) -> list[JobRecord]:
    """Parse the output of :func:`ffdl_slurm.commands.sacct_argv`. Raises Garbled, OddRows."""
    return _read_all(read_lines(text, len(ACCOUNT_FIELDS), "sacct", ("JobID", "State")), _account_record)


def _account_record(line: str) -> JobRecord:
    number, state, exit_code, submitted, started, ended, nodes, reason, name = split_row(
        line, len(ACCOUNT_FIELDS), "sacct"
    )
    return parse_row(JobRow(number, name, state, exit_code, "", submitted, started, ended, nodes, reason))


# slurmstepd that cannot open a batch script's files exits with ESLURMD_IO_ERROR (4021, slurm/slurm_errno.h;
# `_setup_io` in slurmstepd/mgr.c), which is then read as a wait status: 4021 & 0x7f.
_NO_OUTPUT_SIGNAL = 53


def parse_row(row: JobRow) -> JobRecord:
    """Return the record of a row. Exit codes and end times count only if the job has ended. Raises Garbled."""
    match = _JOB_ID.fullmatch(row.number.strip())
    if match is None:
        raise Garbled(f"{row.number!r} is not a job id")
    word, meaning = interpret_state(row.state)
    ended = meaning.phase is Phase.ENDED
    # For waiting jobs, Slurm prints the expected start and end.
    begun = ended or meaning.phase in (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)
    code, signal = parse_exit(row.exit_code)
    end, reason = meaning.end, _absent(row.reason)
    if end is EndCause.SUCCESS and (code or signal):
        end = EndCause.FAILURE
    if end is EndCause.FAILURE and signal == _NO_OUTPUT_SIGNAL:
        end, reason = EndCause.LAUNCH_FAILED, "the batch script's output file could not be opened; check --output"
    seen = Observation(
        phase=meaning.phase,
        native_state=word,
        end=end,
        exit_code=code if ended and not signal else None,
        exit_signal=(signal or None) if ended else None,
        reason=reason,
        nodes=_absent(row.nodes),
        restarts=int(row.restarts) if row.restarts.strip().isdigit() else 0,
        submitted_at=parse_time(row.submitted),
        started_at=parse_time(row.started) if begun else None,
        ended_at=parse_time(row.ended) if ended else None,
        name=row.name.strip(),
        held_for_good=is_held_for_good(meaning.phase, reason),
        nowhere=has_nowhere_to_run(meaning.phase, reason),
    )
    job, tasks = match[1], match[2] or match[3]
    if tasks is None:
        return JobRecord(job, None, NativeId.parse(job), seen)
    return JobRecord(job, tasks, NativeId.parse(f"{job}_{tasks}") if tasks.isdigit() else None, seen)


def read_rows(text: str, columns: int, command: str, titles: tuple[str, str]) -> list[list[str]]:
    """Return the fields of the rows below the header. Raises Garbled."""
    return [
        split_row(line, columns, command) for line in filter(may_be_row, read_lines(text, columns, command, titles))
    ]


def read_lines(text: str, columns: int, command: str, titles: tuple[str, str]) -> list[str]:
    """Return the lines below the header. For several clusters, each has a header after a CLUSTER: line. Raises
    Garbled."""
    lines: list[str] = []
    seen_header = False
    for line in text.split("\n"):
        if titles[0] in line and _is_header(line.split(SEPARATOR, columns - 1), columns, titles):
            seen_header = True
        elif seen_header and line.strip() and not line.startswith("CLUSTER: "):
            lines.append(line)
    if not seen_header:
        raise Garbled(f"{command} printed no header but {begin(text)!r}")
    check_last_line(text, command)
    return lines


def may_be_row(line: str) -> bool:
    """Return whether the line may be a row about a job, or a part of one from its beginning. Other lines are printed by
    a site around the rows, or continue a job's name."""
    return SEPARATOR in line or line.lstrip()[:1].isdigit()


def check_last_line(text: str, command: str) -> None:
    """Raise Garbled if the output ends in the middle of a row."""
    if may_be_row(text.rpartition("\n")[2]):
        raise Garbled(f"{command} ended in the middle of a line")


def _is_header(fields: Sequence[str], columns: int, titles: tuple[str, str]) -> bool:
    """Return whether the fields are the header. A login script may print control sequences before it."""
    return len(fields) == columns and fields[0].rstrip().endswith(titles[0]) and fields[1].strip() == titles[1]


def split_row(line: str, columns: int, command: str) -> list[str]:
    """Return the fields of a line. The last one may hold separators. Raises Garbled."""
    fields = line.split(SEPARATOR, columns - 1)
    if len(fields) < columns:
        raise Garbled(f"{command} printed {begin(line)!r} among its rows")
    return fields


def parse_exit(text: str) -> tuple[int | None, int | None]:
    """Return exit code and signal of ``code:signal``, or of the wait status that squeue printed before 23.x."""
    text = text.strip()
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        return int(match[1]), int(match[2])
    if text.isdigit():
        return int(text) >> 8 & 0xFF, int(text) & 0x7F
    return None, None


def parse_time(text: str) -> float | None:
    """Return the seconds since the epoch of a time that Slurm prints; None for Unknown, None, N/A."""
    text = text.strip()
    if re.fullmatch(r"\d{6,}", text, re.ASCII):
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _absent(text: str) -> str:
    text = text.strip()
    return "" if text in ("None", "(null)", "None assigned", "Unknown", "N/A", "n/a") else text


def words_of(text: str) -> list[str]:
    """Split a list with commas."""
    return [word for word in _absent(text).split(",") if word]


def parse_excluded(text: str) -> str | None:
    """Parse the output of :func:`ffdl_slurm.commands.excluded_argv`. Return the list of nodes that a job excludes ("" =
    none); None if the job is not listed. Raises Garbled."""
    rows = read_rows(text, len(EXCLUDED_FIELDS), "squeue", ("JOBID", "EXC_NODES"))
    return _absent(rows[0][1]) if rows else None


def parse_submission(text: str) -> str | None:
    """Return the job id that ``sbatch --parsable`` printed, on a line among those that sites print before and after.

    Return None if there is no id, or more than one: then the job is looked for by its name. A number that cannot be a
    job's (:data:`ffdl_slurm.commands.LARGEST_JOB_ID`) was printed by a wrapper.
    """
    numbers = (match[1] for line in text.split("\n") if (match := _PARSABLE_ID.fullmatch(line.strip())))
    found = set(filter(is_job_id, numbers))
    return found.pop() if len(found) == 1 else None


DEFAULT_MAX_ARRAY_SIZE = 1001
"""MaxArraySize if slurm.conf does not set it (slurm.conf(5))."""


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """Values of slurm.conf. None if a time is not printed."""

    max_array_size: int
    """MaxArraySize: one more than the largest index of a job array; 0 if the site has no arrays."""
    slurmd_timeout_s: int | None
    kill_wait_s: int | None


def parse_config(text: str) -> SiteConfig:
    """Parse the output of :func:`ffdl_slurm.commands.config_argv`. Raises Garbled if it has no MaxArraySize."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)\s*$", text, re.MULTILINE)
    if match is None:
        raise Garbled(f"scontrol printed no MaxArraySize but {begin(text)!r}")
    return SiteConfig(int(match[1]), _config_seconds(text, "SlurmdTimeout"), _config_seconds(text, "KillWait"))


def _config_seconds(text: str, key: str) -> int | None:
    """Parse a line such as ``SlurmdTimeout           = 300 sec``."""
    match = re.search(rf"^{re.escape(key)}\s*=\s*(\d+) sec\s*$", text, re.MULTILINE)
    return int(match[1]) if match else None


def parse_version(text: str) -> str:
    """Return the version, such as ``26.05.5`` of ``slurm 26.05.5``; "" if there is none."""
    match = re.search(r"^slurm(?:-wlm)?\s+(\S+)", text, re.MULTILINE)
    return match[1] if match else ""


# ------------------------------------------------------------------------------------------------ the site


def count_nodes(names: str) -> int:
    """Count the nodes of a list such as ``n[01-16,20],m1`` or ``r[1-2]n[1-4]``. An invalid range counts once."""
    return sum(
        math.prod(sum(map(_span, group.split(","))) for group in re.findall(r"\[([^\]]*)\]", part))
        for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names)
    )


def _span(text: str) -> int:
    match = re.fullmatch(r"(\d+)-(\d+)", text, re.ASCII)
    return max(1, int(match[2]) - int(match[1]) + 1) if match else 1


def parse_gpus(text: str) -> dict[str, int]:
    """Return the counts of GPUs by type of a list such as ``gpu:a100:4(S:0-1),gpu:2,shard:8``; "" = without a type."""
    return {kind: count for (name, kind), count in _parse_gres(text).items() if name == "gpu"}


def parse_other_gres(text: str) -> dict[str, int]:
    """Return the counts of all other GRES by ``name`` or ``name:type``."""
    others = ((name, kind, count) for (name, kind), count in _parse_gres(text).items() if name != "gpu")
    return {f"{name}:{kind}" if kind else name: count for name, kind, count in others}


def _parse_gres(text: str) -> dict[tuple[str, str], int]:
    """Return the counts of ``name[:type][:no_consume][:count]`` by name and type. MIG types begin with a digit
    (``1g.10gb``). Slurm prints GRES in use without a type with the type ``(null)``."""
    found: dict[tuple[str, str], int] = {}
    for part in re.sub(r"\([^)]*\)", "", text.replace(":(null)", "")).split(","):
        plain = part.strip().replace(":no_consume", "")
        match = re.fullmatch(r"([A-Za-z_][^:]*)(?::([^:]+))??(?::(\d+)([kKmMgG]?))?", plain)
        if match is not None:
            count = int(match[3] or 1) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[(match[4] or "").lower()]
            key = (match[1], match[2] or "")
            found[key] = found.get(key, 0) + count
    return {key: count for key, count in found.items() if count > 0}
