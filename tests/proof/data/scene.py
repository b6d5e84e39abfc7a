"""The scene: a store with faults in front of it, a user with a cache and secrets, the jobs, and what became of them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.cluster.rig.topology import COMPUTE_NODES
from tests.cluster.written import written
from tests.proof.data import comparing, many
from tests.proof.data.faults import EXPIRY, faults
from tests.proof.data.manifests import (
    HUB,
    KEY,
    KINDS,
    PASSWORD,
    with_data,
    with_events,
    with_losses,
    with_many,
    with_mount,
)
from tests.proof.data.store import Store
from tests.proof.data.values import (
    EXPIRING,
    HELD,
    MAIN,
    MANY,
    MOUNTED,
    QUICK_RESULTS,
    QUICK_SETS,
    RESULTS,
    SETS,
    SHARED,
    Scale,
    data_sets,
    digests,
    losses,
)
from tests.proof.data.verdict import CONTROLS, Ended, Found, Moved
from tests.proof.desk import LOGIN_NODE, VENV_PYTHON, Desk
from tests.secret_search import Search, environment_of
from tests.unit.collectors.writers import write

USER, CACHE = "alice", "/tmp/ffdl-cache-of-proof"
LEARNERS = 2
"""Of the job with faults."""
CACHES = {SHARED: ("n1", "n2"), HELD: ("n1",)}
"""The nodes whose jobs share a data set."""
SOURCE = Path(__file__).resolve().parent / "learner.py"
STARTS_S, SETTLES_S = 600.0, 600.0
MODES = {"always": "mounted", "never": "brought"}


Say = Callable[[str], None]


def _print_nothing(_what: str) -> None:
    pass


class Scene:
    """A context. `broken` is what is left out or spoilt beforehand: cache, code, control, faults, set. `say` is told
    what is done next."""

    def __init__(self, cluster: Cluster, scale: Scale, seed: int, broken: str = "", say: Say = _print_nothing) -> None:
        self.cluster, self.scale, self.broken, self._say = cluster, scale, broken, say
        self.sets, self.losses = data_sets(scale, seed), losses(scale, seed)
        tag = os.urandom(6).hex()
        self.values = {
            KEY: f"PLANTEDKEY{tag}".upper(),
            PASSWORD: f"planted/Password+{tag}",
            HUB: f"pl\u00e4nted-hub \"x\" 'y' \\ $HOME %+/?&\r\nsecond line-{tag}",
        }
        self.search = Search(self.values)
        self.ids: dict[str, str] = {}
        """Names of jobs here → ids."""
        self.faults = [(kind, rule) for kind, rule in faults() if broken != "code" or kind != EXPIRY]
        self._leaks: list[str] = []
        self._controls: dict[str, bool] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        with self._stack:
            place = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-proof-"))
            cached = 'data_mount = "never"\n'
            cached += "" if self.broken == "cache" else f'cache_dir = "{CACHE}"\ncache_bytes = "1GB"\n'
            staging = f'staging_python = "{VENV_PYTHON}"\n'
            self._stack.callback(self._clear_caches)
            self.desk = self._stack.enter_context(
                Desk(self.cluster, USER, "proof-data", "cli", settings=staging, site=cached)
            )
            self._events = write(Path(place, "events"), [(n, {"accuracy": v}) for n, v in enumerate(self.losses, 1)])
            self.store = self._stack.enter_context(Store(self.cluster, Path(place)))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def _clear_caches(self) -> None:
        for node in (one for one in COMPUTE_NODES if self.cluster.factory.init_of(one.name)):
            self.cluster.run(node.name, ["rm", "-rf", CACHE])

    # --- what happens ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All jobs, to their ends; one of them is halted and resumed."""
        self._clear_caches()
        self._say(f"puts {sum(map(len, self.sets.values()))} files into stores")
        for name, files in self.sets.items():
            self.store.put(QUICK_SETS if name == MANY else SETS, name, files)
        user, password = self.values[KEY], self.values[PASSWORD]
        self.store.put_in_swift(user, password, SETS, MOUNTED, self.sets[MOUNTED])
        if self.broken == "set":
            self.store.alter(SETS, f"{MAIN}/slow")
        if self.broken != "faults":
            self.store.rules(*(rule for _, rule in self.faults))
        for name, value in self.values.items():
            argv = ["ffdl", "secret", "set", name]
            self.cluster.run(LOGIN_NODE, argv, user=USER, env=self.desk.environment, cwd=self.desk.base, input=value)
        self._write_models()
        self._say("submits jobs")
        self._submit()
        self._say(f"waits for {len(self.ids)} jobs, one of which is halted and resumed")
        self._await_held("holding", STARTS_S)
        self._look_while_held()
        self.desk.run("ffdl", "halt", self.ids[HELD])
        self._await_end([self.ids[HELD]])
        self.desk.run("ffdl", "resume", self.ids[HELD])
        self._let_go_when_collected()
        self._await_end(list(self.ids.values()))

    def _write_models(self) -> None:
        learner = SOURCE.read_text(encoding="utf-8")
        texts = {}
        for name, files in self.sets.items():
            texts[f"{self.desk.base}/model-{name}/learner.py"] = learner
            texts[f"{self.desk.base}/model-{name}/digests.json"] = json.dumps(digests(files))
        lines = "".join(f"step {step} loss {value}\n" for step, value in enumerate(self.losses, 1))
        texts[f"{self.desk.base}/model-losses/losses.txt"] = lines
        texts[f"{self.desk.base}/model-events/README"] = "an event file\n"
        self.desk.write(texts)
        event = self.desk.host_path(f"{self.desk.base}/model-events/events.out.tfevents.1")
        event.write_bytes(self._events.read_bytes())
        os.chown(event, USERS[USER], USERS[USER])

    def _submit(self) -> None:
        endpoint = self.store.endpoint
        held = with_data(endpoint, HELD, "hold", results=True, secret=self.broken != "control")
        main = with_data(endpoint, MAIN, "copy", learners=LEARNERS, results=True)
        self._send("-w", "n1", model=HELD, **{HELD: held})
        self._send(model=MAIN, **{MAIN: main})
        shared, nodes = with_data(endpoint, SHARED, "check"), CACHES[SHARED]
        for number, node in enumerate(nodes):
            names = [f"{SHARED}-{n}" for n in range(number, self.scale.sharing, len(nodes))]
            self._send("-w", node, model=SHARED, **dict.fromkeys(names, shared))
        self._send(model=MANY, **{MANY: with_many(self.store.quick)})
        self._send(model=EXPIRING, **{EXPIRING: with_data(endpoint, EXPIRING, "check")})
        ends = {kind: self.store.swift if kind == "swift" else endpoint for kind in KINDS}
        stores = {f"{MOUNTED}-{k}-{mode}": with_mount(ends[k], k, MOUNTED, mode) for k in KINDS for mode in MODES}
        self._send(model=MOUNTED, **stores)
        self._send(model="losses", losses=with_losses())
        self._send(model="events", events=with_events())

    def _send(self, *options: str, model: str, **manifests: str) -> None:
        """Jobs of one model, by one command."""
        self.desk.write({f"{self.desk.base}/{name}.yml": text for name, text in manifests.items()})
        argv = ["ffdl-submit", "--parsable", *options, *(f"{name}.yml" for name in manifests), f"model-{model}"]
        said = self.desk.run(*argv).stdout.split()
        if len(said) != len(manifests):
            raise RuntimeError(f"{' '.join(argv)} gave {said}")
        self.ids |= dict(zip(manifests, said, strict=True))

    def _await_held(self, word: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while word not in self._log(HELD).splitlines():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job that is to be halted does not start: {self._shown(HELD)}")
            time.sleep(0.5)

    def _let_go_when_collected(self) -> None:
        """The jobs with metrics stay until their collectors are at work; what is missing then is the judge's."""
        deadline = time.monotonic() + STARTS_S
        for name in ("losses", "events"):
            asked = ("ffdl", "metrics", "--json", self.ids[name])
            while not self.desk.run(*asked, check=False).stdout and time.monotonic() < deadline:
                time.sleep(0.5)
            self.desk.write({f"{self.desk.base}/jobs/jobs/{self.ids[name]}/attempt-1/state/go": ""})

    def _await_end(self, ids: Sequence[str]) -> None:
        ends_s = 900.0 + self.scale.small_files / 20
        self.desk.run("ffdl", "wait", f"--timeout={ends_s}", *ids, check=False, timeout_s=ends_s + 60)

    # --- what is seen of it ------------------------------------------------------------------------------------

    def found(self) -> Found:
        """All of it, as it is now."""
        self._say("looks for secrets in all that was written")
        leaks = [*self._leaks, *self.leaks()]
        self._say("compares what came, results and metrics with what was planted")
        kinds = dict.fromkeys((kind for kind, _ in faults()), 0)
        for (kind, _), times in zip(self.faults, self.store.met(), strict=False):
            kinds[kind] += times
        records, strange = self.metrics()
        return Found(
            {name: self._ended(name) for name in self.ids},
            self._came(),
            self.results(),
            kinds,
            leaks,
            self.search.files,
            self._controls,
            self._downloads(),
            records,
            strange,
            self._mounts(),
            many.figures(len(self.sets[MANY]), self._shown(MANY)["timestamps"]),
        )

    def results(self) -> Moved:
        """The bucket of results, by a plain client: FfDL's layout, and each byte."""
        stored = self.store.fetch(RESULTS, "")
        models = {name: stored.pop(f"{self.ids[name]}/_submitted_code/model.zip", None) for name in (MAIN, HELD)}
        main, held = self.ids[MAIN], self.ids[HELD]
        wanted = {f"{main}/{name}": data for name, data in comparing.copies(self.sets[MAIN], LEARNERS).items()}
        for learner in range(1, LEARNERS + 1):
            wanted[f"{main}/learner-{learner}/training-log.txt"] = self._log(MAIN, learner).encode()
        wanted |= {
            f"{held}/before": b"written before the halt",
            f"{held}/after": b"resumed from 7",
            f"{held}/learner-1/training-log.txt": self._log(HELD, attempt=2).encode(),
            f"{held}/learner-1/attempt-1/training-log.txt": self._log(HELD).encode(),
            f"_wml_checkpoints/{held}/last": b"7",
        }
        seen = comparing.compare("results", wanted, stored)
        code = SOURCE.read_bytes()
        for name, archive in models.items():
            seen += comparing.compare_model(name, comparing.model_of(code, self.sets[name]), archive)
        quick = self.store.fetch(QUICK_RESULTS, "")
        return seen + many.results(self.ids[MANY], self.sets[MANY], self._log(MANY).encode(), quick, code)

    def metrics(self) -> tuple[int, list[str]]:
        """How many records `ffdl metrics` has of both jobs, and which of them are not as planted."""
        count, strange = 0, list[str]()
        for name, group, value in (("losses", "train", "loss"), ("events", "test", "accuracy")):
            said = self.desk.run("ffdl", "metrics", "--json", self.ids[name]).stdout
            lines = [json.loads(line) for line in said.splitlines()]
            strange += comparing.strange_records(name, lines, group, value, "iteration", self.losses)
            count += len(lines)
        return count, strange

    def leaks(self) -> list[str]:
        """Where a secret still is when all jobs have ended, but for what the user keeps, and what a job that can be
        resumed needs."""
        kept = {f"~/proof-data/jobs/secrets/{name}" for name in self.values}
        deadline = time.monotonic() + SETTLES_S
        while left := sorted(written(self.cluster, self.search, f"/home/{USER}").keys() - kept):
            # An attempt's file goes when all is stored; what is elsewhere stays.
            if time.monotonic() > deadline or any(not _is_attempt_file(place) for place in left):
                break
            time.sleep(1)
        processes = [f"the environment of process {pid}" for pid in self.search.in_processes("environ")]
        return [*left, *processes, *self._answers()]

    def _look_while_held(self) -> None:
        """Secrets are where they must be, or the search proves nothing, and nowhere else."""
        found = written(self.cluster, self.search, f"/home/{USER}")
        kept = {f"~/proof-data/jobs/secrets/{name}": {name} for name in self.values}
        own = f"~/proof-data/jobs/jobs/{self.ids[HELD]}/attempt-1/secrets.json"
        said = f"secret {hashlib.sha256(self.values[HUB].encode()).hexdigest()}"
        having = self.search.in_processes("environ")
        learners = [n for pid, n in having.items() if environment_of(pid).get("TRAINING_ID") == self.ids[HELD]]
        controls = (
            all(found.get(place) == names for place, names in kept.items()),
            found.get(own) == set(self.values),
            bool(learners) and all(names == {HUB} for names in learners),
            said in self._log(HELD).splitlines(),
        )
        self._controls = dict(zip(CONTROLS, controls, strict=True))
        self._leaks = [place for place in sorted(found.keys() - kept.keys()) if not _is_attempt_file(place)]
        self._leaks += [f"the environment of process {pid}" for pid, names in having.items() if names != {HUB}]
        self._leaks += [f"the arguments of process {pid}" for pid in self.search.in_processes("cmdline")]
        self._leaks += self._answers()

    def _answers(self) -> list[str]:
        """Commands whose output holds a secret."""
        natives = [self._shown(name)["native_id"] for name in self.ids]
        every = list(self.ids.values())
        asked = [["ffdl", what, *every] for what in ("show", "events")]
        asked += [["ffdl", "logs", one] for one in every]
        asked += [["ffdl", "secret", "list"], ["ffdl", "list", "--json"], ["scontrol", "-o", "show", "job"]]
        asked += [["sacct", "-P", "-j", ",".join(filter(None, natives)), "-o", "ALL"]]
        leaks = []
        for argv in asked:
            done = self.desk.run(*argv, check=False)
            self.search.files += 1
            if self.search.within((done.stdout + done.stderr).encode()):
                leaks.append(f"what {' '.join(argv[:2])} says")
        return leaks

    def _came(self) -> Moved:
        seen = Moved()
        for name in self.ids:
            data = name.partition("-")[0]
            if name == EXPIRING or data not in self.sets:
                continue
            for learner in range(1, (LEARNERS if name == MAIN else 1) + 1):
                for attempt in (1, 2) if name == HELD else (1,):
                    log = self._log(name, learner, attempt)
                    seen += comparing.told(f"{name}, learner {learner}", log, self.sets[data])
        return seen

    def _mounts(self) -> dict[str, bool]:
        """Whether the node did what was requested, for each kind of store."""
        logs = {(kind, mode): self._log(f"{MOUNTED}-{kind}-{mode}") for kind in KINDS for mode in MODES}
        said = f"ffdl: loading data: {SETS}/{MOUNTED} is mounted\n"
        return {f"{kind} {MODES[mode]}": (said in log) is (mode == "always") for (kind, mode), log in logs.items()}

    def _downloads(self) -> dict[str, list[float]]:
        given = self.store.given()
        return {
            data: [
                given[f"/{SETS}/{data}/{name}"] / len(content) / len(nodes)
                for name, content in self.sets[data].items()
                if content
            ]
            for data, nodes in CACHES.items()
        }

    def _ended(self, name: str) -> Ended:
        job = self._shown(name)
        was = (str(job["state"]), str(job["error_code"]))
        return Ended(was, ("FAILED", "C103")) if name == EXPIRING else Ended(was)

    def _shown(self, name: str) -> Mapping[str, Any]:
        return dict(json.loads(self.desk.run("ffdl", "show", "--json", self.ids[name]).stdout)["job"])

    def file_of(self, name: str, inside: str, attempt: int = 1) -> Path:
        """A file of an attempt of a job, as this process finds it."""
        return self.desk.host_path(f"{self.desk.base}/jobs/jobs/{self.ids[name]}/attempt-{attempt}/{inside}")

    def _log(self, name: str, learner: int = 1, attempt: int = 1) -> str:
        path = self.file_of(name, f"logs/learner-{learner}/training-log.txt", attempt)
        return path.read_text(encoding="utf-8") if path.exists() else ""


def _is_attempt_file(place: str) -> bool:
    """Whether the system keeps an attempt's secrets there."""
    words = place.split("/")
    in_job = words[:4] == ["~", "proof-data", "jobs", "jobs"]
    return in_job and words[-1] == "secrets.json" and words[-2].startswith("attempt-")
