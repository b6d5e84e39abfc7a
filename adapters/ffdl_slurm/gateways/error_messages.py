"""Tables of the messages of Slurm's commands and libraries, by what they mean for a request. All in lower case.

They are from src/common/slurm_errno.c, src/sbatch, src/scancel and the table of options, 20.11 to 26.05. A message that
is in no table is never taken for a refusal, because failures of login nodes have any wording.
"""

from __future__ import annotations

import re

NO_CLIENT = (
    "unable to process configuration file",
    "error while loading shared libraries",
    "symbol lookup error",
    "clustername needs to be specified",
)
"""The command cannot work here because its configuration or libraries are missing, as during an upgrade."""
NOT_SENT = (
    "controller (connect failure)",
    "connection timed out establishing",
    "communication connection failure",
    "could not establish a configuration source",
    "unable to establish controller machine",
    "unable to resolve",
    *NO_CLIENT,
)
"""The message never left this machine."""
_LIBRARY = r"^(?:\S+: )?error: (?:\S+: )*?"
"""The beginning of a line that a library of Slurm prints. The last words before a colon are functions and plugins."""
CREDENTIAL_TEXTS = ("munge encode failed", "failed to initialize auth", "cannot find auth plugin")
NO_CREDENTIAL = re.compile(f"{_LIBRARY}(?:{'|'.join(CREDENTIAL_TEXTS)})", re.MULTILINE | re.IGNORECASE)
"""A line before the last one: no credential could be made, so the request never left this machine either."""
REPLY_LOST = (
    "timed out on send/recv",
    "zero bytes were transmitted",
    "munge decode failed",
    "auth_g_verify",
    "slurm_auth_verify",
    "slurm_unpack_received_msg",
    "slurm_receive_msg:",
)
"""Texts of a request that was sent and whose answer was lost. If sbatch prints an answer of the controller, they count
only in that answer."""
UNTRUSTED = re.compile(
    _LIBRARY
    + r"(?:munge decode failed:|g?_?(?:slurm_)?auth_(?:g_)?verify:|slurm_unpack_received_msg:|slurm_receive_msgs?:)",
    re.MULTILINE | re.IGNORECASE,
)
"""A line before the last one: the answer came and could not be trusted. The last line is then :data:`UNREAD`, as for a
refusal (20.11: "Unspecified error"). auth_g_create is about the request itself. The functions are those of
src/common/slurm_protocol_api.c that read an answer."""
UNREAD = ("unspecified error", "protocol authentication error")
TOO_MANY = (
    "job queue full",
    "temporarily unable to accept job",
    "maxsubmitjob",
    "maxjobcount limit",
)
"""The controller answered that it, the account or the QOS takes no more jobs now."""
DECLINED_FOR_NOW = (
    *TOO_MANY,
    "temporarily disabled",
    "authentication error",
    "authentication credential",
    "job credential",
    "in standby mode",
    "resource temporarily unavailable",
    "cannot send after transport",
    "rate limit exceeded",
)
"""The controller answered, and did not take the job now; the same request may succeed later."""
MAYBE_SENT = (
    "timed out",
    "controller (send failure)",
    "controller (receive failure)",
    "controller (shutdown failure)",
    "message receive failure",
    "message send failure",
    "communication shutdown failure",
    "unexpected message received",
    "connection reset",
    "broken pipe",
    "header lengths are longer",
    "insane message length",
    "unspecified error",
)
POLICY = "violates accounting/qos policy"
"""slurmctld returns this code for limits of submission and for limits that this request can never meet, and prints the
name of the limit (:data:`LIMIT`). A job_submit plugin returns it with its own message."""
NO_CODE = ("unspecified error", "unknown error")
"""Texts that sbatch prints for SLURM_ERROR (-1, src/common/slurm_errno.c), which a site's job_submit.lua returns as
``slurm.ERROR``, and for numbers that are in no table (strerror(3)). The message of ``slurm.user_msg`` is on the lines
before it (`_unpack_return_code2_msg` in src/common/slurm_protocol_pack.c prints it, in 20.11 to 26.05)."""
PASSING = (
    "i/o error writing script",
    "invalid user id",
    "invalid group id",
    "incompatible versions",
    "submissions disabled",
    "presently disabled",
    "slurm internal error",
    "partition not available",
    "partition in down state",
    "partition configuration not available now",
    "nodes are busy",
    "node not available",
    "reservation is in use",
    "reservation not usable now",
    "maintenance reservation",
    "licenses currently unavailable",
    "ports are in use",
    "waiting for burst buffer",
    "job creation temporarily",
    "try again",
    "plugin initialization failed",
)
"""The controller answered with a temporary condition of the site. The same request succeeds when the condition has
ended."""
LOCAL = (
    "fork:",
    "cannot allocate memory",
    "no space left",
    "disk quota exceeded",
    "too many open files",
    "stale file handle",
    "input/output error",
    "text file busy",
    "ssh: ",
    "closed by remote host",
    "unable to open file",
)
"""Errors on the login node before sbatch contacts the controller. They do not depend on the job."""
NOT_ASKED = ("cli_filter plugin terminated", "plugin stack post-option processing failed")
"""Last line of sbatch when a plugin of the site stops it before it contacts the controller (src/sbatch/opt.c,
sbatch.c). The plugin's own text is on the lines before it."""
NOT_RUN_CODES = frozenset({126, 127})
"""Exit statuses of a shell that cannot run a command."""
UNANSWERED = (*NOT_SENT, *CREDENTIAL_TEXTS, *REPLY_LOST, *MAYBE_SENT, *DECLINED_FOR_NOW)
GONE = (
    "invalid job id",
    "already completing or completed",
    "already finished",
    "job/step already",
    "does not exist",
    "invalid job/step",
    "job step not running",
)
NO_SUCH_ARRAY = "invalid job array"
NO_RESOURCES = (
    "more processors requested than permitted",
    "requested more tasks than available processors",
    "requested node configuration is not available",
    "requested topology configuration is not available",
    "memory required by task is not available",
)
REFUSED = (
    NO_SUCH_ARRAY,
    *NO_RESOURCES,
    "invalid partition name",
    "invalid partition specified",
    "no partition specified",
    "access/permission denied",
    "group not permitted to use this partition",
    "requested nodes not in this partition",
    "node count specification invalid",
    "cpu count specification invalid",
    "task count specification invalid",
    "task distribution specification invalid",
    "job size specification needs",
    "job script not specified",
    "environment is missing in job",
    "without the current working directory",
    "parameter too long",
    "invalid node name specified",
    "invalid feature specification",
    "invalid preferred feature",
    "invalid extra constraints",
    "--batch option is invalid",
    "multiple knl",
    "invalid knl configuration",
    "requested operation not supported",
    "job dependency problem",
    "circular job dependency",
    "invalid account",
    "invalid or unknown association",
    "multiple partition job request not supported",
    "invalid qos specification",
    "invalid wckey",
    "invalid license specification",
    "invalid mcs_label",
    "invalid --nice",
    "requested time limit is invalid",
    "time limit specification required",
    "invalid time specified",
    "invalid time-min",
    "access denied to requested reservation",
    "requested reservation is invalid",
    "ports than can be reserved",
    "generic resource (gres) specification",
    "invalid gres specification",
    "requested gres option unsupported",
    "invalid trackable resource",
    "restrictedcorespergpu:",
    "cannot request more threads per core",
    "burst buffer permission denied",
    "burst buffer request invalid",
    "invalid container id",
    "container support is not configured",
    "invalid cluster name",
    "invalid cluster feature",
    "invalid accounting frequency",
    "invalid mpi plugin name",
    "x11 forwarding not available",
)
"""The controller answered, and what it says is about the request itself. Not here: what passes, as a partition that is
drained, a reservation in use, a controller whose disk is full or that knows a user no more while its directory service
is away."""
VERDICT_OF_SUBMISSION = re.compile(
    r"^(?:\S+: )?(?:error: )?(?:batch job submission failed|allocation failure):(.*)$", re.MULTILINE | re.IGNORECASE
)
"""The last such line has the answer of the controller. With --test-only it is in other words. Lines before it are
messages of the site and of libraries, and a message of the site may look the same."""
RETRIES = re.compile(
    r"^(?:\S+: )?(?:error: )?"
    r"(?:job creation temporarily disabled, retrying|slurm job queue full, sleeping and retrying|"
    r"slurm temporarily unable to accept job, sleeping and retrying)\.?$",
    re.MULTILINE | re.IGNORECASE,
)
"""A line of sbatch before it submits the job again (main in src/sbatch/sbatch.c). The controller has answered."""
EAGAIN = "resource temporarily unavailable"
"""The last words of sbatch if the controller has returned EAGAIN each time."""
SITE_MESSAGE = re.compile(
    r"^(?:\S+: )?error: (?![^\n]*(?:, retrying|and retrying)|ignoring obsolete)\S.*",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
"""Matches from the first line that a library prints for the controller, as the message of a job_submit plugin. Old
releases print the prefix only before the first line of a message."""
SITE_PHRASES = re.compile(
    r"^(?!\S*sbatch: (?!error: ))(?:(?:\S+: )?error: )?(?!.*(?:, retrying|and retrying))(.*\S)",
    re.MULTILINE | re.IGNORECASE,
)
"""Matches one line of such a message."""
LIMIT = re.compile(r"\b(?:Assoc|QOS|Partition)[A-Z]\w+")
"""The name of a limit, which sbatch prints before :data:`POLICY` (slurm_protocol_defs.c, job_state_reason_string)."""
USAGE_CODE = 255
"""Exit status of sbatch, exit(-1), when it does not accept an option or its value. The lines before its last line may
have another prefix, for example those of parse_time in src/common/parse_time.c."""
USAGE = re.compile(
    r"\S*sbatch: (?:error: |unrecognized option|invalid option|ambiguous option|option '|try )|try \"sbatch --help",
    re.IGNORECASE,
)
SCRIPT = re.compile(
    r"^sbatch: (?:error|fatal): (?:"
    r"invalid (?:directive|number of|numeric value|node list|--)|numeric argument|"
    r"(?:don't|cannot) specify both|incompatible begin and deadline|"
    r"too few processes|batch script (?:is empty|contains)|this does not look like a batch script|"
    r"the slurm controller does not allow scripts|script .*is too (?:large|big)|"
    r".*: line \d+: un(?:matched|expected) `|.* not permitted with|.*can not be bigger than)",
    re.IGNORECASE | re.MULTILINE,
)
"""What sbatch says of a script and its options before it asks anybody."""
VERDICT = re.compile(r"^.*(?:kill job error on job|slurm_load_jobs error).*$", re.IGNORECASE | re.MULTILINE)
"""scancel's last words on a job, on a step, and on the listing that it needs first. Other lines come from libraries."""
OF_A_STEP = "error on job step id"
NO_MESSAGE = frozenset({2017 & 0xFF, 2021 & 0xFF})
"""What scancel ends with, saying nothing, where a step has ended (ESLURM_INVALID_JOB_ID, ESLURM_ALREADY_DONE)."""
ACCOUNTS_DOWN = ("talking to the database", "persist", "slurmdbd", "connection refused")
NO_ACCOUNTS = ("accounting storage is disabled",)
