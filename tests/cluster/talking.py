"""Learners that call each other over TCP and UDP, and try what is not their job's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cluster.people import Person
from tests.cluster.trainings import attempt_log

# Every learner calls every other by name, TCP and UDP; then what is not the job's.
TALK = r"""
import json, os, socket, threading, time
me, n, prefix = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["LEARNER_NAME_PREFIX"]
names = [f"{prefix}-{i}" for i in range(n)]
addresses = [socket.gethostbyname(name) for name in names]
own = addresses[me]
tcp, udp = socket.create_server((own, 5000)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((own, 5000))
def serve_tcp():
    while True:
        connection, peer = tcp.accept()
        connection.sendall(f"tcp {me} to {peer[0]}".encode())
        connection.close()
def serve_udp():
    while True:
        text, peer = udp.recvfrom(100)
        udp.sendto(f"udp {me} to {peer[0]}".encode(), peer)
for one in (serve_tcp, serve_udp):
    threading.Thread(target=one, daemon=True).start()
def ask(kind, address, port, tries=1, patience_s=2):
    for left in reversed(range(tries)):
        try:
            with socket.socket(socket.AF_INET, kind) as asked:
                asked.settimeout(patience_s)
                if address.startswith("10.200."):
                    asked.bind((own, 0))
                asked.connect((address, port))
                asked.send(b"?")
                return asked.recv(100).decode()
        except OSError as error:
            said = str(error)
            if left: time.sleep(0.1)
    return said
found = {"addresses": addresses, "master": os.environ["MASTER_ADDR"], "own": own}
found["tcp"] = [ask(socket.SOCK_STREAM, one, 5000, 1000, 10) for one in addresses]
found["udp"] = [ask(socket.SOCK_DGRAM, one, 5000, 1000, 10) for one in addresses]
found["slurmctld"] = ask(socket.SOCK_STREAM, "10.77.0.1", 6817)
found["slurmd"] = [ask(socket.SOCK_STREAM, f"10.77.0.1{k}", 6818) for k in (1, 2)]
found["lo"] = ask(socket.SOCK_STREAM, "127.0.0.1", 6818)
found["hosts"] = open("/etc/hosts").read()
print("found", json.dumps(found), flush=True)
done = os.environ["JOB_STATE_DIR"] + "/heard-"
open(done + str(me), "w").close()
while not all(os.path.exists(done + str(i)) for i in range(n)):
    time.sleep(0.1)
time.sleep(1)  # to be seen
"""


def found_by(person: Person, job: Mapping[str, Any], learner: int) -> dict[str, Any]:
    """What a learner of TALK printed."""
    log = attempt_log(person, job, job["attempt"], learner)
    found: dict[str, Any] = json.loads(re.findall(r"^found (\{.*\})$", log, re.MULTILINE)[0])
    return found


def talk(person: Person, name: str, extra: str, learners: int, *options: str, **fields: object) -> dict[str, Any]:
    """A job of TALK that came to its end."""
    model = person.model("talk", {"talk.py": TALK})
    manifest = person.manifest(name, "python3 talk.py", extra, **{"gpus": 0, "learners": learners, **fields})
    job = person.finish(person.submit(manifest, model, *options))
    assert job["state"] == "COMPLETED", (job["message"], attempt_log(person, job, 1))
    return job
