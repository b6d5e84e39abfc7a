"""Data from a bucket and results into it, on real Slurm: the store is on a login node, learners have no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import VENV

ADDRESS, PORT = "10.77.0.1", 5123
URL = f"http://{ADDRESS}:{PORT}"
KEY, SECRET = "PLANTEDACCESSKEY0002", "planted-cluster-secret-0123456789"
PYTHON = f"{VENV}/bin/python"
CLIENT = """\
import botocore.session, json, sys, time
from botocore.config import Config
client = botocore.session.Session().create_client("s3", region_name="us-east-1", endpoint_url=sys.argv[1],
    aws_access_key_id="anybody", aws_secret_access_key="anything", config=Config(s3={"addressing_style": "path"}))
"""
FILL = (
    CLIENT
    + """
for _ in range(300):
    try:
        client.list_buckets()
        break
    except Exception:
        time.sleep(0.1)
for bucket in ("sets", "trained"):
    client.create_bucket(Bucket=bucket)
for name, text in json.loads(sys.argv[2]).items():
    client.put_object(Bucket="sets", Key=name, Body=text.encode())
"""
)
LIST = (
    CLIENT
    + """
def read(key):
    return client.get_object(Bucket="trained", Key=key)["Body"].read().decode("utf-8", "replace")

found = client.list_objects_v2(Bucket="trained").get("Contents", [])
print(json.dumps({one["Key"]: read(one["Key"]) for one in found}))
"""
)
COMMAND = (
    "cat /mnt/data/sets/digits/deep/a; python3 -c 'import socket; print([n for _, n in socket.if_nameindex()])'; "
    'echo $LEARNER_ID > "$RESULT_DIR/of-$LEARNER_ID"; echo 1 > "$CHECKPOINT_DIR/last"'
)
STORE = f"""\
data_stores:
  - id: cos
    type: mount_cos
    training_data: {{container: sets/digits}}
    training_results: {{container: trained}}
    connection: {{auth_url: "{URL}", user_name: {KEY}, password: {SECRET}}}
batch: {{network: none, mount: never}}
"""


@dataclass(frozen=True)
class Ended:
    """A job of two learners on two nodes, what the bucket of results has, and a submission with a bucket that is not
    there."""

    job: dict[str, Any]
    stored: dict[str, str]
    refused: str


@pytest.fixture(scope="module")
def ended(cluster: Cluster, alice: Person) -> Iterator[Ended]:
    fill, listing = alice.write("~/s3/fill.py", FILL), alice.write("~/s3/list.py", LIST)
    server = alice.popen(PYTHON, "-W", "ignore", "-m", "moto.server", "-H", ADDRESS, "-p", str(PORT))
    try:
        alice.run(PYTHON, fill, URL, json.dumps({"digits/deep/a": "from the bucket\n", "digits/b": "2", "other": "3"}))
        job = alice.finish(alice.start("data", COMMAND, extra=STORE, learners=2, gpus=0))
        stored = json.loads(alice.run(PYTHON, listing, URL).stdout)
        wrong = alice.manifest("wrong", COMMAND, STORE.replace("sets/digits", "no-such-bucket"), gpus=0)
        model = alice.model("empty", {"README": "nothing here\n"})
        refused = alice.run("ffdl-submit", wrong, model, check=False)
    finally:
        cluster.kill(server)
    assert refused.returncode == 78, refused
    yield Ended(job, stored, refused.stderr)


def test_learners_read_bucket_data_without_network_access(ended: Ended, alice: Person) -> None:
    assert ended.job["state"] == "COMPLETED", ended.job
    assert ended.job["network"] == "none"
    for learner in (1, 2):
        said = alice.run("ffdl", "logs", "--learner", str(learner), ended.job["id"]).stdout
        assert "from the bucket\n['lo']\n" in said, said


def test_results_and_logs_are_stored_in_bucket_in_ffdl_layout(ended: Ended) -> None:
    job_id, stored = ended.job["id"], ended.stored
    assert {key for key in stored if not key.endswith("model.zip")} == {
        f"{job_id}/of-1",
        f"{job_id}/of-2",
        f"{job_id}/learner-1/training-log.txt",
        f"{job_id}/learner-2/training-log.txt",
        f"_wml_checkpoints/{job_id}/last",
    }
    assert f"{job_id}/_submitted_code/model.zip" in stored
    assert "ffdl: loading data: 2 files, " in stored[f"{job_id}/learner-1/training-log.txt"]
    assert stored[f"{job_id}/learner-2/training-log.txt"].endswith("from the bucket\n['lo']\n")


def test_submit_rejects_missing_bucket_without_printing_secret(ended: Ended) -> None:
    assert "NoSuchBucket" in ended.refused
    assert SECRET not in ended.refused


def test_credentials_are_removed_from_state_directory_after_job_ends(ended: Ended, alice: Person) -> None:
    def holders(*texts: str) -> list[str]:
        named = [word for text in texts for word in ("-e", text)]
        return alice.run("sh", "-c", 'grep -rlaF "$@" || true', "sh", *named, alice.state).stdout.split()

    assert any(ended.job["id"] in path for path in holders("sets/digits"))
    wait_until(lambda: holders(SECRET, KEY) == [], "the end of the credentials")
