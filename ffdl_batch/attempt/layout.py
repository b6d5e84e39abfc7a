"""Names of the files and directories of jobs. Nothing here accesses the disk. Runs on Python 3.9.

::

    <root>/                       one per user, on the shared file system, mode 0700
      .tree                       name of this tree in its database
      removed-jobs                ids of removed jobs, one a line; append only
      doorbell/<job id>           empty; touched by a controller that wrote an event
      secrets/<name>              0600; set by `ffdl secret set`
      secrets/.holders/<id>       empty; a job or an array whose directory may hold secrets
      arrays/<array id>/          manifest.yml, secrets.json, environment.json of all its elements
        chunk-<n>/                script.sh, tasks, elements.json, submit/ of elements submitted as one native array
      models/<sha256>.zip         submitted model archives by content
      images/                     images that need credentials, if nodes have no cache
      jobs/<job id>/
        manifest.yml              as submitted, secrets replaced by references
        model.zip                 hard link or copy of the archive
        secrets.json              0600; only if the submission had values
        environment.json          0600; only if the submission exported variables
        checkpoints/              $CHECKPOINT_DIR, one for all attempts
        data/<n>/                 copied from the job's stores, one for all attempts
        staging/                  state of the staging program
        attempt-next/             the files of the next attempt, for a head that continues the job
        attempt-<n>/
          script.sh launch.json environment.json   written by the deployer before the submission
          secrets.json            0600; values of the secrets that this attempt needs
          submit/                 mark of a begun submission, and output of its command
          claim/owner.json        the head that executes the attempt; made by one atomic rename
          claim/run-<k>/          the same for run k, from 2: the scheduler started the attempt again
          control.json            cell: requests to the running attempt
          stop.json               cell written by controllers: why all learners must end
          events/<source>.jsonl   append only, one writer each
          events/learner-<n>.marks  lines "<epoch> <bytes> <lines>": what had been printed then
          events/learner-<n>.files  cell: the files of the log
          events/node-<n>.heartbeat touched while a node controller lives
          final.json              cell: the head's final record
          uploaded.json               cell: results and logs were stored after the attempt had ended
          staging/                tasks and state of the staging program
          state/                  $JOB_STATE_DIR, shared by the attempt's learners
          model/ data/ results/   $MODEL_DIR, copied data, $RESULT_DIR
          logs/learner-<n>/       $LOG_DIR of one learner, with training-log.txt
          metrics/learner-<n>.jsonl  its metrics, and .position .spec.json .stop of its collector
          state/heartbeat-<n>        may be touched by learner n
          metrics/usage-<n>.jsonl    what the learners of a node used
"""

from __future__ import annotations

import os

from ffdl_batch.attempt import log_paths
from ffdl_batch.domain.launch.launch_file import TEMPLATE
from ffdl_batch.host.fast_dataclass import dataclass

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
    def removed_jobs(self) -> str:
        """File with the ids of the jobs whose directories were removed."""
        return os.path.join(self.path, "removed-jobs")

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
    """The directory that the elements of an array share. Each element also has a job directory."""

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
        """The directory of elements that were submitted as one native array: script, table of tasks, submission.

        Chunks are numbered from 1. Before, the name is :data:`ffdl_batch.domain.job.array.UNNUMBERED`.
        """
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
        """Data copied from one of the job's stores, counted from 1; one directory for all attempts."""
        return os.path.join(self.path, "data", str(number))

    @property
    def staging(self) -> str:
        """State of the staging program."""
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
        """A line ``<task> <attempt's directory>`` for each task of a native array."""
        return self._join("tasks")

    @property
    def elements(self) -> str:
        """The table from which the directories of a native array's elements are made; see
        :mod:`ffdl_batch.attempt.element_files`. Mode 0600."""
        return self._join("elements.json")

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
        """Values of secrets that the attempt needs, a JSON object; mode 0600. Removed when no process needs them."""
        return self._join("secrets.json")

    @property
    def submit(self) -> str:
        """Directory with the output of the submitting command."""
        return self._join("submit")

    @property
    def submit_begun(self) -> str:
        """Exists from just before the submission. If it is absent, the scheduler does not know this attempt."""
        return self._join("submit", "begun")

    @property
    def claim(self) -> str:
        """Directory that exists once a head executes the attempt."""
        return self._join("claim")

    @property
    def claim_owner(self) -> str:
        """The head that executes the attempt."""
        return self._join("claim", "owner.json")

    def run_claim(self, run: int) -> str:
        """Directory that exists once run number `run` (from 1) of this attempt was claimed."""
        return self.claim if run == 1 else self._join("claim", f"run-{run}")

    @property
    def control(self) -> str:
        """Cell written by the daemon and read by the controllers; see :mod:`ffdl_batch.attempt.control_cell`."""
        return self._join("control.json")

    @property
    def stop(self) -> str:
        """Cell in which a controller requests that all learners end; empty until then."""
        return self._join("stop.json")

    @property
    def events(self) -> str:
        """Directory of the controllers' event files."""
        return self._join("events")

    def event_file(self, source: str) -> str:
        """The event file of one writer."""
        return self._join("events", f"{source}.jsonl")

    def marks(self, learner_id: int) -> str:
        """Times at which the log of one learner had which size."""
        return log_paths.marks(self.path, learner_id)

    def log_files(self, learner_id: int) -> str:
        """Cell: the files of one learner's log, oldest first, and the position at which each begins."""
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
        """Written when the pending upload of the attempt is stored."""
        return self._join("uploaded.json")

    @property
    def moving(self) -> str:
        """Cell: current transfers to or from the job's stores, written by the first node."""
        return self._join("staging", "now.json")

    def staging(self, name: str) -> str:
        """Directory of a task of the staging program: its file and its state."""
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
        """Directory of metrics."""
        return self._join("metrics")

    def sign_of_life(self, learner_id: int) -> str:
        """A file that a learner may touch as a sign of life if it writes nothing else for long."""
        return self._join("state", f"heartbeat-{learner_id}")

    def learner_metrics(self, learner_id: int) -> str:
        """The records of one learner, in FfDL's form."""
        return self._join("metrics", f"learner-{learner_id}.jsonl")

    def collector_spec(self, learner_id: int) -> str:
        """Specification of one learner's collector."""
        return self._join("metrics", f"learner-{learner_id}.spec.json")

    def collector_stop(self, learner_id: int) -> str:
        """Exists once the learner has ended. Its collector then reads the rest and ends."""
        return self._join("metrics", f"learner-{learner_id}.stop")

    def usage(self, node_rank: int) -> str:
        """Samples of the use of one node's learners."""
        return self._join("metrics", f"usage-{node_rank}.jsonl")

    def training_log(self, learner_id: int) -> str:
        """Standard output and error of one learner."""
        return os.path.join(self.learner_logs(learner_id), log_paths.TRAINING_LOG)
