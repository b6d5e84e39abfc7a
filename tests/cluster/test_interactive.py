"""Interactive jobs and forwarded ports on Slurm, in real containers, from a login node."""

from __future__ import annotations

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

SERVE = r"""
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.readlink("/proc/self/ns/net").encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print("ready", server.server_port, os.readlink("/proc/self/ns/net"), flush=True)
server.serve_forever()
"""
ASK = r"""
import subprocess, sys, urllib.request
words = ["ffdl", "port-forward", sys.argv[1], "0:" + sys.argv[2]]
with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as made:
    address = made.stdout.readline().split()[1]
    for _ in range(3):
        print(urllib.request.urlopen(f"http://{address}/", timeout=60).read().decode())
    made.terminate()
"""


def queue(alice: Person) -> str:
    return alice.run("squeue", "-h", "-u", "alice", "-o", "%i %T").stdout


def test_run_allocates_with_slurm_and_leaves_nothing(cluster: Cluster, alice: Person) -> None:
    model = alice.model("interactive", {"hello.py": "print('hello')\n"})
    text = "python3 hello.py; cat; echo $TRAINING_ID >&2; exit 7"
    words = ("ffdl", "run", "--quiet", "--model", model, "--cpus=1", "--mem=256", "--time=10", "--", "bash", "-c")
    done = alice.run("sh", "-c", 'echo "from here" | "$@"', "-", *words, text, node="login2", check=False)
    assert (done.returncode, done.stdout) == (7, "hello\nfrom here\n"), done.stderr
    alice.until(done.stderr.strip(), {"FAILED"})
    wait_until(lambda: not queue(alice), "the allocation to end")
    command = 'echo $$; exec "$@"'
    with alice.popen("sh", "-c", command, "-", *words, "echo up; exec sleep 8500", node="login2") as started:
        assert started.stdout is not None
        client, up = started.stdout.readline().strip(), started.stdout.readline()
        assert (up, "RUNNING" in queue(alice)) == ("up\n", True)
        cluster.run("login2", ["kill", "-KILL", client])
        started.wait(300)
    wait_until(lambda: not queue(alice), "the allocation to end")


def test_port_forward_reaches_loopback_of_container_without_network(alice: Person) -> None:
    model = alice.model("serve", {"serve.py": SERVE})
    job_id = alice.submit(alice.manifest("serve", "python3 serve.py", "batch: {network: none}"), model)
    alice.until(job_id, {"PROCESSING"})
    wait_until(lambda: "ready" in alice.logs(job_id), "the server to listen")
    _, port, net = alice.logs(job_id).split()[-3:]
    script = alice.write("~/ask.py", ASK)
    assert alice.run("python3", script, job_id, port, node="login2").stdout.split() == [net] * 3
    alice.run("ffdl", "cancel", job_id)
