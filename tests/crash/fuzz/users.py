"""The users of a world, in a process of their own: each of them is a thread."""

from __future__ import annotations

import socket
import threading
from random import Random

from ffdl_batch.client.errors import UnknownJob
from tests.crash.fuzz.companions import read_line, send_line
from tests.crash.fuzz.diary import Diary, Note
from tests.crash.fuzz.habits import Habits
from tests.crash.fuzz.user import User


class Users:
    """All users of one world. `prefer` is what the parent would like to see now."""

    def __init__(self, habits: Habits, diary: Diary, seed: int) -> None:
        self._habits, self._diary = habits, diary
        self._people = [User(number, habits, diary, Random(f"{seed}/{number}")) for number in range(habits.threads)]
        self._prefer = ""
        self._stop = threading.Event()

    def serve(self, parent: socket.socket) -> None:
        """Work until the parent says that it is enough, then finish, and say so."""
        threads = [threading.Thread(target=self._work, args=(user,)) for user in self._people]
        for thread in threads:
            thread.start()
        while (order := read_line(parent)) is not None:
            self._prefer = order.get("prefer", "")
            if "finish_s" in order:
                self._stop.set()
                _join(threads)
                _join([threading.Thread(target=self._finish, args=(one, order["finish_s"])) for one in self._people])
            send_line(parent, {"jobs": sum(len(user.jobs) for user in self._people)})

    def _work(self, user: User) -> None:
        while not self._stop.is_set():
            try:
                user.act(self._prefer)
            except UnknownJob:
                continue  # the diary has it
            except Exception as error:
                self._diary.write(Note("act", fault=f"user {user.number} failed: {type(error).__name__}: {error}"))
                raise
            self._stop.wait(user.chance.uniform(0.0, 2 * self._habits.pause_s))

    def _finish(self, user: User, limit_s: float) -> None:
        try:
            user.finish(limit_s)
        except Exception as error:
            self._diary.write(Note("finish", fault=f"user {user.number} failed: {type(error).__name__}: {error}"))
            raise


def _join(threads: list[threading.Thread]) -> None:
    """Wait for threads, those that have not begun too."""
    for thread in threads:
        if thread.ident is None:
            thread.start()
    for thread in threads:
        thread.join()
