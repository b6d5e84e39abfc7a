"""The image policy of a site on real Slurm: Apptainer verifies image files on the nodes, with keys of the site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

SITE, NODE, PLACE = "/etc/ffdl/site.toml", "n1", "/shared/signed"
SIGN = f"""
set -eu
rm -rf {PLACE} /tmp/keys-*; mkdir -m 755 {PLACE}
for name in site stranger; do
    export APPTAINER_KEYSDIR=/tmp/keys-$name
    apptainer -s key newpair -N $name -E $name@site.example -C '' -P '' -U=false >/dev/null
    cp $APPTAINER_KEYSDIR/pgp-public {PLACE}/$name.key; chmod 644 {PLACE}/$name.key
    cp /shared/images/custom.sif {PLACE}/$name.sif; apptainer -s sign {PLACE}/$name.sif
done
cp /shared/images/custom.sif {PLACE}/unsigned.sif
cp {PLACE}/site.sif {PLACE}/changed.sif; printf X | dd of={PLACE}/changed.sif bs=1 seek=3000000 conv=notrunc status=none
ln -s /shared/images/custom.sif {PLACE}/out.sif
chmod 755 {PLACE}/*.sif
APPTAINER_KEYSDIR=/tmp/keys-site apptainer key list
"""


@dataclass(frozen=True)
class Policy:
    """A user under the policy, and the fingerprint of the site's key."""

    alice: Person
    key: str

    def submit(self, image: str) -> str:
        return self.alice.submit(self.manifest(image), self.model, f"--nodelist={NODE}")

    @property
    def model(self) -> str:
        return self.alice.model("empty", {"README": "nothing here\n"})

    def manifest(self, image: str) -> str:
        text = f"name: image\ncpus: 1\nmemory: 256MiB\nframework:\n  name: custom\n  version: {json.dumps(image)}\n"
        return self.alice.write("~/manifests/policy.yml", f"{text}  command: echo it started\n")


@pytest.fixture(name="policy", scope="module")
def made(cluster: Cluster, alice: Person) -> Iterator[Policy]:
    listed = cluster.run("ctl", ["sh", "-c", SIGN]).stdout
    key = listed.partition("Fingerprint:")[2].split()[0]
    site = f'[image_policy]\nallow = ["{PLACE}", "docker://registry.site.example"]\nsigners = ["{key}"]\n'
    site += 'require_digest = ["docker://"]\n'
    cluster.run("ctl", ["sh", "-c", f"mkdir -p -m 755 /etc/ffdl && cat >{SITE}"], input=site)
    for name in ("site", "stranger"):
        cluster.run(NODE, ["apptainer", "-s", "key", "import", "--global", f"{PLACE}/{name}.key"])
    own = alice.at("policy", CONFIG)
    yield Policy(own, key)
    own.kill_daemon("TERM")
    cluster.run("ctl", ["rm", "-r", "/etc/ffdl", PLACE, "/tmp/keys-site", "/tmp/keys-stranger"])
    alice.kill_daemon("TERM")  # it may have restarted with the site's file


def test_only_image_file_that_site_has_signed_starts(policy: Policy) -> None:
    names = ("site", "unsigned", "stranger", "changed")
    ids = [policy.submit(f"{PLACE}/{name}.sif") for name in names]
    signed, *others = policy.alice.finish_all(ids)
    assert signed["state"] == "COMPLETED", signed
    assert "it started" in policy.alice.logs(ids[0])
    reasons = ("signature not found", "it is signed by ", "data object integrity compromised")
    for job, job_id, name, reason in zip(others, ids[1:], names[1:], reasons, strict=True):
        assert (job["state"], job["error_code"]) == ("FAILED", "C107"), job
        assert all(text in job["message"] for text in (f"{PLACE}/{name}.sif", reason, policy.key)), job
        assert "it started" not in policy.alice.logs(job_id)


@pytest.mark.parametrize(
    ("image", "rule"),
    [
        ("/shared/images/custom.sif", "allow"),
        (f"{PLACE}/out.sif", "allow"),
        ("quay.io/team/image:1", "allow"),
        ("registry.site.example/team/image:1", "require_digest"),
    ],
)
def test_submission_of_image_against_policy_names_line_and_rule(policy: Policy, image: str, rule: str) -> None:
    done = policy.alice.run("ffdl-submit", policy.manifest(image), policy.model, check=False)
    assert done.returncode == 78, done
    assert "policy.yml:6:" in done.stderr and f"image_policy.{rule}" in done.stderr, done.stderr


def test_user_cannot_set_another_image_policy(policy: Policy) -> None:
    path = policy.alice.write("~/policy/other.toml", "[image_policy]\nallow = ['docker://']\n")
    done = policy.alice.run("ffdl", "config", check=False, env={"FFDL_CONFIG": path})
    assert (done.returncode, f"only {SITE} may set image_policy" in done.stderr) == (78, True), done
