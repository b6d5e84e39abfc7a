"""The manifests of the proof's jobs."""

from __future__ import annotations

from tests.proof.data.values import EACH, MANY, QUICK_RESULTS, QUICK_SETS, RESULTS, SETS

KINDS = {"s3": "mount_cos", "gcs": "gcs_datastore", "swift": "swift_datastore"}
"""Of stores that nodes mount, by what stands in the manifest."""
KEY, PASSWORD, HUB = "proof-key", "proof-password", "proof-hub"
"""Names of secrets: the store's two, and one that a learner gets."""
_JOB = """\
name: {name}
version: "1.0"
cpus: 1
gpus: 0
memory: 256MiB
learners: {learners}
framework: {{name: custom, version: python-numpy, command: {command}}}
"""
_STORE = """\
data_stores:
  - id: store
    type: {type}
    training_data: {{container: {sets}/{data}}}
{results}    connection: {{auth_url: "{endpoint}", user_name: "${{secret:{key}}}", password: "${{secret:{password}}}"}}
"""
_REGEX = """\
evaluation_metrics:
  type: regex_extractor
  line_lookahead: 0
  groups:
    train:
      regex: 'step %{INT:step} loss %{FLOAT:loss}'
      meta: {}
      scalars: {loss: {type: FLOAT, value: $loss}}
      etimes: {iteration: {type: INT, value: $step}}
"""


def with_data(
    endpoint: str, data: str, what: str, *, learners: int = 1, results: bool = False, secret: bool = False
) -> str:
    """A job that reads a data set; `what` is the learner's order."""
    job = _JOB.format(name=data, learners=learners, command=f"python3 learner.py {what} {learners}")
    kept = f"    training_results: {{container: {RESULTS}}}\n" if results else ""
    store = _store("s3", endpoint, data, kept)
    secrets = f', secrets: {{HUB: "${{secret:{HUB}}}"}}' if secret else ""
    return f"{job}{store}batch: {{time: 2h{secrets}}}\n"


def with_many(endpoint: str) -> str:
    """A job that reads very many files, and makes results of some, with a store that is quick."""
    job = _JOB.format(name=MANY, learners=1, command=f"python3 learner.py copy {EACH}")
    store = _store("s3", endpoint, MANY, f"    training_results: {{container: {QUICK_RESULTS}}}\n", QUICK_SETS)
    return f"{job}{store}batch: {{time: 2h}}\n"


def with_mount(endpoint: str, kind: str, data: str, mode: str) -> str:
    """A job that checks a data set of a store of this kind; `mode` is whether nodes mount it."""
    job = _JOB.format(name=f"{data}-{kind}-{mode}", learners=1, command="python3 learner.py check 1")
    return f"{job}{_store(kind, endpoint, data)}batch: {{time: 2h, mount: {mode}}}\n"


def _store(kind: str, endpoint: str, data: str, results: str = "", sets: str = SETS) -> str:
    return _STORE.format(
        type=KINDS[kind], sets=sets, data=data, results=results, endpoint=endpoint, key=KEY, password=PASSWORD
    )


_UNTIL = "until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done"
"""A collector has seconds when its learner has ended, which a busy machine may need to start it."""


def with_losses() -> str:
    """A job that prints what a regular expression finds, and stays until it is let go."""
    return _JOB.format(name="losses", learners=1, command=f"'cat losses.txt; {_UNTIL}'") + _REGEX


def with_events() -> str:
    """A job that leaves an event file, and stays until it is let go."""
    command = f'\'mkdir -p "$LOG_DIR/tb/test" && cp events.out.tfevents.1 "$LOG_DIR/tb/test/"; {_UNTIL}\''
    job = _JOB.format(name="events", learners=1, command=command)
    return f"{job}evaluation_metrics: {{type: tensorboard}}\n"
