"""A parameter server and its workers, over plain sockets: who is what follows from FfDL's variables.

Learners 1 … PS_HOSTS_COUNT are parameter servers, the others workers; learner i is the host
``$LEARNER_NAME_PREFIX-<i - 1>``. A server never ends by itself.
"""

import argparse
import json
import os
import socket
import socketserver
import threading
import time
from pathlib import Path

import numpy

PORT = 2222  # the one that FfDL opens for this
LEARNERS = int(os.environ["NUM_LEARNERS"])
SERVERS = int(os.environ.get("PS_HOSTS_COUNT", "1"))
HOSTS = [f"{os.environ['LEARNER_NAME_PREFIX']}-{number}" for number in range(LEARNERS)]
TRUTH = numpy.array([3.0, -2.0, 0.5, 1.0])  # what is to be learnt


class Weights(socketserver.StreamRequestHandler):
    """Holds the weights: a line with a gradient comes in, a line with the weights goes out."""

    lock = threading.Lock()
    values = numpy.zeros(len(TRUTH))

    def handle(self):
        """One worker, until it hangs up."""
        for line in self.rfile:
            with Weights.lock:
                Weights.values = Weights.values - 0.05 * numpy.array(json.loads(line))
                answer = json.dumps(list(Weights.values))
            self.wfile.write(answer.encode() + b"\n")


def serve():
    """For ever."""
    print(f"serving on {socket.gethostname()}", flush=True)
    with socketserver.ThreadingTCPServer(("", PORT), Weights) as server:
        server.serve_forever()


def work(number, steps):
    """Pull the weights, push the gradient of one example, and so on; with several servers take one of them."""
    source = numpy.random.default_rng(number)
    connection = connect(HOSTS[number % SERVERS])
    lines, gradient = connection.makefile(), numpy.zeros(len(TRUTH))
    for step in range(steps + 1):
        connection.sendall(json.dumps(list(gradient)).encode() + b"\n")
        weights = numpy.array(json.loads(lines.readline()))
        example = source.normal(size=len(TRUTH))
        gradient = (example @ (weights - TRUTH)) * example
        if step % 50 == 0:
            print(f"step {step} error {abs(weights - TRUTH).max():.4f}", flush=True)
    Path(os.environ["RESULT_DIR"], f"worker-{number}.json").write_text(json.dumps(list(weights)) + "\n")


def connect(host):
    """The server may be a moment later than its workers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn four numbers with a parameter server.")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    own = int(os.environ["LEARNER_ID"]) - 1
    if own < SERVERS:
        serve()
    else:
        work(own, arguments.steps)
