"""Who answers whom: programs that listen, and programs that ask them, each in a network namespace and as a user."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.overlay.nodes import PYTHON, as_user

PORT = 5001
LONG_S, SHORT_S = 60.0, 1.0
"""How long an answer is waited for: one that has to come from a busy machine, and one that must not."""
_LISTEN = """
import json, select, socket, sys
tag, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind((address, port))
tcp.listen()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((address, port))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0ffdl-" + tag)
unix.listen()
print("ready", flush=True)
while True:
    for ready in select.select([tcp, udp, unix], [], [])[0]:
        if ready is udp:
            text, peer = udp.recvfrom(100)
            print(json.dumps(["udp", text.decode(), peer[0]]), flush=True)
            udp.sendto(tag.encode(), peer)
        else:
            with ready.accept()[0] as connection:
                connection.sendall(tag.encode())
"""
_ASK = """
import json, socket, sys, threading
def ask(kind, address, port, wait_s):
    try:
        if kind == "unix":
            asked = socket.socket(socket.AF_UNIX)
            asked.settimeout(wait_s)
            asked.connect("\\0ffdl-" + address)
        else:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            asked = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
            asked.settimeout(wait_s)
            if kind == "broadcast":
                asked.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            asked.connect((address, port))
            if kind != "tcp":
                asked.send(b"who")
        return asked.recv(100).decode()
    except OSError as error:
        return f"no answer: {type(error).__name__} {error.strerror or ''}"
questions = json.loads(sys.argv[1])
answers = [""] * len(questions)
def work(number):
    answers[number] = ask(*questions[number])
threads = [threading.Thread(target=work, args=(number,)) for number in range(len(questions))]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(answers))
"""
NO_ANSWER = "no answer:"


@contextmanager
def listening(
    namespace: str, tag: str, address: str, uid: int = 0, port: int = PORT
) -> Iterator[subprocess.Popen[str]]:
    """A program that answers every question with its tag and prints what it is sent over UDP."""
    argv = ["nsenter", f"--net={namespace}", *as_user([*PYTHON, "-c", _LISTEN, tag, address, str(port)], uid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def ask_all(
    namespace: str, *questions: tuple[str, str], port: int = PORT, uid: int = 0, wait_s: float = LONG_S
) -> list[str]:
    """The tags of those who answer at tcp, udp, broadcast or unix and an address (unix: a tag), all asked at once, or
    NO_ANSWER and why."""
    asked = json.dumps([[kind, address, port, wait_s] for kind, address in questions])
    said: list[str] = json.loads(run_in(namespace, [*PYTHON, "-c", _ASK, asked], uid))
    return said


def are_silent(namespace: str, *questions: tuple[str, str], port: int = PORT, uid: int = 0) -> bool:
    """Whether nobody answers at any of them."""
    said = ask_all(namespace, *questions, port=port, uid=uid, wait_s=SHORT_S)
    return all(text.startswith(NO_ANSWER) for text in said)


def ask(namespace: str, kind: str, address: str, port: int = PORT, uid: int = 0, wait_s: float = LONG_S) -> str:
    """The tag of whoever answers, or NO_ANSWER and why."""
    return ask_all(namespace, (kind, address), port=port, uid=uid, wait_s=wait_s)[0]


def is_silent(namespace: str, kind: str, address: str, port: int = PORT, uid: int = 0) -> bool:
    """Whether nobody answers there."""
    return are_silent(namespace, (kind, address), port=port, uid=uid)


def run_in(namespace: str, argv: Sequence[str], uid: int = 0) -> str:
    """What a program in the namespace prints."""
    command = ["nsenter", f"--net={namespace}", *as_user(argv, uid)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def heard(listener: subprocess.Popen[str]) -> list[Any]:
    """End a listener; what it was sent over UDP."""
    listener.kill()
    assert listener.stdout is not None
    return [json.loads(line) for line in listener.stdout if line.endswith("\n")]
