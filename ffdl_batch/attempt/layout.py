"""Where the files of a job lie: names only, nothing here touches the disk. Runs on Python 3.9.

::

    <root>/                       one per user, on the shared file system, mode 0700
      .tree                       what this tree is called in the database that goes with it
      doorbell/<job id>           empty; rung by a controller that wrote something
      secrets/<name>              0600; what `ffdl secret set` was given
      secrets/.holders/<id>       empty; a job or an array whose directory may hold secrets
      arrays/<array id>/          manifest.yml, secrets.json, environment.json of all its elements
        chunk-<n>/                script.sh, tasks, submit/ of elements submitted as one native array
      models/<sha256>.zip         submitted model archives by content
      images/                     images of registries that want credentials, as in a cache; where nodes have none
      jobs/<job id>/
        manifest.yml              as submitted, secrets replaced by references
        model.zip                 hard link or copy of the archive
        secrets.json              0600; only where the submission brought values along
        environment.json          0600; only where the submission exported variables
        checkpoints/              $CHECKPOINT_DIR, one for all attempts
        data/<n>/                 what was brought from the job's stores, one for all attempts
        staging/                  what the staging program remembers of that
        attempt-next/             the files of the next attempt, for a head that goes on alone
        attempt-<n>/
          script.sh launch.json environment.json   written by the deployer before the scheduler hears of it
          secrets.json            0600; the values that this attempt needs, while it needs them
          submit/                 that a submission began, and what the submitting command said
          claim/owner.json        who executes this attempt; made by one atomic rename
          claim/run-<k>/          likewise, from 2: the scheduler started the attempt anew
          control.json            cell: what the platform wants of the running attempt
          stop.json               cell written by controllers: why all learners must end
          events/<source>.jsonl   append only, one writer each
          events/learner-<n>.marks  lines "<epoch> <bytes> <lines>": what was printed until then
          events/learner-<n>.files  cell: which files the log consists of
          events/node-<n>.heartbeat touched while a node controller lives
          final.json              cell: the head's last word
          paid.json               cell: results and logs were stored after the attempt had ended
          secrets.json            0600; values of the secrets that the attempt's stores need
          staging/                tasks of the staging program, and what it remembers
          state/                  $JOB_STATE_DIR, shared by the attempt's learners
          model/ data/ results/   $MODEL_DIR, copied data, $RESULT_DIR
          logs/learner-<n>/       $LOG_DIR of one learner, with training-log.txt
          metrics/learner-<n>.jsonl  what the learner said of itself, and .position .spec.json .stop of its collector
          state/heartbeat-<n>        touched by learner n, where it likes to
          metrics/usage-<n>.jsonl    what the learners of a node used
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ffdl_batch.attempt import log_paths
from ffdl_batch.domain.launch.launch_file import TEMPLATE

BATCH_LOG = "batch.log"


@dataclass(frozen=True)
class Root:
    """A user's tree."""

    path: str

    @property
    def doorbell(self) -> str:
        """Directory of empty files named like the jobs that have news."""
        return os.path.join(self.path, "doorbell")

    @property
    def secrets(self) -> str:
        """Directory of the user's named secrets."""
        return os.path.join(self.path, "secrets")

    @property
    def secret_holders(self) -> str:
        """Directory of empty files named like the jobs and arrays whose directories may hold secrets."""
        return os.path.join(self.secrets, ".holders")

    @property
    def models(self) -> str:
        """Directory of model archives by content."""
        return os.path.join(self.path, "models")

    @property
    def images(self) -> str:
        """Directory of the user's private images, where the site's nodes have no cache."""
        return os.path.join(self.path, "images")

    def model(self, digest: str) -> str:
        """The archive with this SHA-256 (hex)."""
        return os.path.join(self.models, f"{digest}.zip")

    def job(self, job_id: str) -> JobDir:
        """The directory of one job."""
        return JobDir(os.path.join(self.path, "jobs", job_id))

    @property
    def arrays(self) -> str:
        """Directory of the arrays' directories."""
        return os.path.join(self.path, "arrays")

    def array(self, array_id: str) -> ArrayDir:
        """The directory of one array."""
        return ArrayDir(os.path.join(self.arrays, array_id))


@dataclass(frozen=True)
class ArrayDir:
    """What the elements of one array share; each of them has a directory of its own as every job."""

    path: str

    @property
    def manifest(self) -> str:
        """The manifest as submitted, secrets replaced."""
        return os.path.join(self.path, "manifest.yml")

    @property
    def secrets(self) -> str:
        """Values that the submission brought along, by the names that the record has for them; mode 0600."""
        return os.path.join(self.path, "secrets.json")

    @property
    def exported(self) -> str:
        """Variables that the submission exported, a JSON object; mode 0600."""
        return os.path.join(self.path, "environment.json")

    def chunk(self, number: "int | str") -> AttemptDir:
        """The directory of the elements that were submitted as one native array: its script, the table of its tasks,
        and what the submitting command said, by the names that an attempt has for them. A number from 1, or what
        stands for one before there is any (:data:`ffdl_batch.domain.job.array.UNNUMBERED`)."""
        return AttemptDir(os.path.join(self.path, f"chunk-{number}"))


@dataclass(frozen=True)
class JobDir:
    """One job's directory."""

    path: str

    @property
    def manifest(self) -> str:
        """The manifest as submitted, secrets replaced."""
        return os.path.join(self.path, "manifest.yml")

    @property
    def model_archive(self) -> str:
        """The submitted model."""
        return os.path.join(self.path, "model.zip")

    @property
    def secrets(self) -> str:
        """Values that the submission brought along, by the names that the record has for them; mode 0600."""
        return os.path.join(self.path, "secrets.json")

    @property
    def exported(self) -> str:
        """Variables that the submission exported, a JSON object; mode 0600."""
        return os.path.join(self.path, "environment.json")

    @property
    def checkpoints(self) -> str:
        """$CHECKPOINT_DIR on the host."""
        return os.path.join(self.path, "checkpoints")

    def data(self, number: int) -> str:
        """What was brought from one of the job's stores, counted from 1; one for all attempts."""
        return os.path.join(self.path, "data", str(number))

    @property
    def staging(self) -> str:
        """What the staging program remembers of what it brought."""
        return os.path.join(self.path, "staging")

    @property
    def template(self) -> AttemptDir:
        """The files of the next attempt, whatever its number."""
        return AttemptDir(os.path.join(self.path, f"attempt-{TEMPLATE}"))

    def attempt(self, number: int) -> AttemptDir:
        """The directory of one attempt."""
        return AttemptDir(os.path.join(self.path, f"attempt-{number}"))


@dataclass(frozen=True)
class AttemptDir:
    """One attempt's directory; never shared with another attempt."""

    path: str

    def _join(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    @property
    def script(self) -> str:
        """The batch script."""
        return self._join("script.sh")

    @property
    def batch_log(self) -> str:
        """Standard output and error of the batch script, unless the manifest has them elsewhere (``batch.output``)."""
        return self._join(BATCH_LOG)

    @property
    def tasks(self) -> str:
        """Of a native array: a line ``<task> <attempt's directory>`` for each of its tasks."""
        return self._join("tasks")

    @property
    def launch(self) -> str:
        """The launch file."""
        return self._join("launch.json")

    @property
    def environment(self) -> str:
        """User environment for the learner, a JSON object; mode 0600."""
        return self._join("environment.json")

    @property
    def secrets(self) -> str:
        """The values that the attempt needs, a JSON object; mode 0600. Gone when nothing is left to do for it."""
        return self._join("secrets.json")

    @property
    def submit(self) -> str:
        """Directory with what the submitting command said."""
        return self._join("submit")

    @property
    def submit_begun(self) -> str:
        """Exists from just before the scheduler is asked; absent = it never heard of this attempt."""
        return self._join("submit", "begun")

    @property
    def claim(self) -> str:
        """Directory that exists once somebody executes the attempt."""
        return self._join("claim")

    @property
    def claim_owner(self) -> str:
        """Who executes it."""
        return self._join("claim", "owner.json")

    def run_claim(self, run: int) -> str:
        """Directory that exists once run number `run` (from 1) of this attempt was claimed."""
        return self.claim if run == 1 else self._join("claim", f"run-{run}")

    @property
    def control(self) -> str:
        """Cell written by the platform, read by the controllers: `attempt` (the newest of the job), `request` ("" |
        halt | cancel), `drill` ("" | halt | timeout | preempt | node-fail), `run` (which run of the attempt that is
        played on), `given_up` (null, or which run was given up as silent, when and why)."""
        return self._join("control.json")

    @property
    def stop(self) -> str:
        """Cell in which one controller tells the others that all learners must end; empty until then."""
        return self._join("stop.json")

    @property
    def events(self) -> str:
        """Directory of the controllers' event files."""
        return self._join("events")

    def event_file(self, source: str) -> str:
        """The event file of one writer."""
        return self._join("events", f"{source}.jsonl")

    def marks(self, learner_id: int) -> str:
        """When the log of one learner had which size."""
        return log_paths.marks(self.path, learner_id)

    def log_files(self, learner_id: int) -> str:
        """Cell: the files of one learner's log, oldest first, and where in the whole of its output each begins."""
        return log_paths.log_files(self.path, learner_id)

    def heartbeat(self, node_rank: int) -> str:
        """Touched while the node controller lives."""
        return self._join("events", f"node-{node_rank}.heartbeat")

    @property
    def final(self) -> str:
        """The head's final record."""
        return self._join("final.json")

    @property
    def uploaded(self) -> str:
        """Written by whoever stored what the attempt itself could not."""
        return self._join("paid.json")

    @property
    def moving(self) -> str:
        """Cell: what moves to or from the job's stores now, by the first node's word."""
        return self._join("staging", "now.json")

    def staging(self, name: str) -> str:
        """A task of the staging program: its file, and what the program remembers of it."""
        return self._join("staging", name)

    @property
    def state(self) -> str:
        """$JOB_STATE_DIR on the host."""
        return self._join("state")

    @property
    def model(self) -> str:
        """$MODEL_DIR on the host."""
        return self._join("model")

    @property
    def data(self) -> str:
        """Copied input data."""
        return self._join("data")

    @property
    def results(self) -> str:
        """$RESULT_DIR on the host."""
        return self._join("results")

    @property
    def logs(self) -> str:
        """Directory of the learners' log directories."""
        return self._join("logs")

    def learner_logs(self, learner_id: int) -> str:
        """$LOG_DIR of one learner (counted from 1) on the host."""
        return log_paths.learner_logs(self.path, learner_id)

    @property
    def metrics(self) -> str:
        """Directory of what was measured."""
        return self._join("metrics")

    def sign_of_life(self, learner_id: int) -> str:
        """A file that a learner may touch with each step, when it shows nothing else for long."""
        return self._join("state", f"heartbeat-{learner_id}")

    def learner_metrics(self, learner_id: int) -> str:
        """The records of one learner, in FfDL's form."""
        return self._join("metrics", f"learner-{learner_id}.jsonl")

    def collector_spec(self, learner_id: int) -> str:
        """What the collector of one learner is told."""
        return self._join("metrics", f"learner-{learner_id}.spec.json")

    def collector_stop(self, learner_id: int) -> str:
        """Exists once the learner has ended: its collector reads the rest, and ends."""
        return self._join("metrics", f"learner-{learner_id}.stop")

    def usage(self, node_rank: int) -> str:
        """What the learners of one node used, sample by sample."""
        return self._join("metrics", f"usage-{node_rank}.jsonl")

    def training_log(self, learner_id: int) -> str:
        """Standard output and error of one learner."""
        return os.path.join(self.learner_logs(learner_id), log_paths.TRAINING_LOG)
