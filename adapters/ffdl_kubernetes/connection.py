"""Which cluster is meant, how connections to it are made, and credentials that a program of the kubeconfig gives.

lightkube runs these programs in their beta protocol only, and passes them nothing about the cluster
(kubernetes.io, "Authenticating", "client-go credential plugins").
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ffdl_batch.domain.scheduler_errors import SchedulerMissing
from ffdl_kubernetes.settings import IN_CLUSTER, KubernetesSettings

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig

_log = logging.getLogger(__name__)
PROTOCOLS = frozenset(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
_OF_CLUSTERS = {
    "proxy-url": "set HTTPS_PROXY where the daemon runs",
    "tls-server-name": "write the name that the server's certificate has into server",
}
_OF_USERS = dict.fromkeys(("as", "as-uid", "as-groups"), "give the user that is meant its own credentials")
"""Keys of a kubeconfig that are refused, and what helps (kubernetes.io, "kubeconfig (v1)")."""
PROGRAM_S = 60.0
"""So long a program may take: some ask a server of their own."""
_READING = threading.Lock()
"""Held while lightkube reads a configuration: msgspec 0.22 crashes the process if two threads are the first to convert
to the same type."""
EARLY_S = 10.0
"""A token is renewed so long before it expires."""


def require_library() -> None:
    """Raises SchedulerMissing where the extra is not installed: nothing of it is needed before the first request."""
    try:
        import httpx2  # noqa: F401
        import lightkube.config.client_adapter  # noqa: F401
    except ImportError as error:
        raise SchedulerMissing(
            f"Kubernetes is spoken to by lightkube, which is not installed for {sys.executable} ({error}): "
            "pip install 'ffdl-batch[kubernetes]'"
        ) from error


def load_config(settings: KubernetesSettings) -> SingleConfig:
    """Return the cluster, user and namespace that the settings choose. Raises SchedulerMissing."""
    require_library()
    import yaml
    from lightkube.core.exceptions import ConfigError

    where = settings.kubeconfig or "$KUBECONFIG, ~/.kube/config, or a pod's service account"
    try:
        with _READING:
            found = _find_config(settings).get(settings.context or None)
        if found is None:
            raise SchedulerMissing(f"{where} names no current context; name one in context of [backend.kubernetes]")
        _refuse_unheeded(found)
    except (ConfigError, OSError, KeyError) as error:
        cure = "name the file in kubeconfig and the context in context of [backend.kubernetes]"
        raise SchedulerMissing(f"no cluster is configured in {where}: {error}; {cure}") from error
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:  # lightkube checks nothing of its shape
        said = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else "it is empty, or not as one is"
        raise SchedulerMissing(f"{where} is not a kubeconfig: {said}; correct it, or write a new one") from error
    return found


def _refuse_unheeded(config: SingleConfig) -> None:
    """Refuse keys of the kubeconfig that lightkube ignores, so that no other server or user is used than intended.
    Raises SchedulerMissing."""
    if config.fname is None:
        return
    import yaml

    plain = yaml.safe_load(Path(config.fname).read_text(encoding="utf-8"))
    for part, name, keys in (
        ("cluster", config.context.cluster, _OF_CLUSTERS),
        ("user", config.context.user, _OF_USERS),
    ):
        own = next((one.get(part) or {} for one in plain.get(f"{part}s") or () if one.get("name") == name), {})
        for key in keys:
            if own.get(key):
                raise SchedulerMissing(
                    f"{key} of {part} {name} in {config.fname} is not supported: {keys[key]}, or name another context "
                    "in context of [backend.kubernetes]"
                )


def _find_config(settings: KubernetesSettings) -> KubeConfig:
    """Find the configuration as kubectl does, but without merging files (kubernetes.io, "Organizing Cluster Access").
    Files that the environment names win over the service account of a pod."""
    from lightkube.config.kubeconfig import KubeConfig

    if settings.kubeconfig == IN_CLUSTER:
        return KubeConfig.from_service_account()
    if settings.kubeconfig:
        return KubeConfig.from_file(Path(settings.kubeconfig).expanduser())
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    there = [path for path in named if path.is_file()]
    if len(there) > 1:
        raise SchedulerMissing("KUBECONFIG names several files; name one of them in kubeconfig of [backend.kubernetes]")
    own = Path("~/.kube/config").expanduser()
    for path in there or named or ([own] if own.is_file() else []):
        return KubeConfig.from_file(path)
    return KubeConfig.from_service_account()


def parameters_of(config: SingleConfig, timeout_s: float) -> dict[str, Any]:
    """Arguments for a client of httpx. Raises SchedulerMissing."""
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.core.exceptions import ConfigError

    try:
        found = ConnectionParams(timeout=httpx2.Timeout(timeout_s)).httpx_params(config)
    except (ConfigError, OSError, ValueError, AssertionError) as error:
        said = f"{error}; correct its user and its cluster, or log in again"
        raise SchedulerMissing(f"context {config.context_name} of {config.fname} cannot be used: {said}") from error
    user = config.user
    if user is not None and user.token == "":
        raise SchedulerMissing(f"user {config.context.user} of {config.fname} has an empty token; log in again")
    if user is None or user.token_file:  # which lightkube reads again
        return found
    if user.token:
        found["auth"] = as_auth(Written(config))
    elif user.exec is not None:
        found["auth"] = as_auth(Program(config))
    return found


class Tokens(Protocol):
    """Where tokens come from."""

    def token(self, refused: str = "") -> str:
        """Another one than `refused`, where there is one."""
        ...


class Written:
    """A token of the kubeconfig. If the server refuses it, it is read again, from the same context and for the same
    server only, so users who log in again need not restart the daemon."""

    def __init__(self, config: SingleConfig) -> None:
        """Nothing is read yet."""
        assert config.user is not None and config.user.token
        self._config, self._token = config, config.user.token

    def token(self, refused: str = "") -> str:
        """See :class:`Tokens`. A file that cannot be read now leaves the one that is known."""
        if refused == self._token and self._config.fname is not None:
            self._token = self._look_up(Path(self._config.fname)) or self._token
        return self._token

    def _look_up(self, path: Path) -> str:
        import yaml
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError

        try:
            found = KubeConfig.from_file(path).get(self._config.context_name)
        except (ConfigError, OSError, KeyError, TypeError, yaml.YAMLError) as error:
            _log.warning("%s, in which another token may stand, cannot be read: %s", path, error)
            return ""
        if found is None or found.user is None or found.cluster.server != self._config.cluster.server:
            return ""
        return found.user.token or ""


class Program:
    """Asked for a token when there is none, when it expires, and when the server does not take it. One at a time."""

    def __init__(self, config: SingleConfig) -> None:
        """Raises SchedulerMissing for a protocol that is not known here."""
        assert config.user is not None and config.user.exec is not None
        self._config, self._settings = config, config.user.exec
        if self._settings.apiVersion not in PROTOCOLS:
            raise SchedulerMissing(
                f"{self._what} speaks {self._settings.apiVersion}; known are {', '.join(sorted(PROTOCOLS))}"
            )
        self._lock = threading.Lock()
        self._token, self._expires = "", float("inf")

    @property
    def _what(self) -> str:
        return f"the program {self._settings.command}, which {self._config.fname} names for credentials,"

    def token(self, refused: str = "") -> str:
        """Another one than `refused`. Raises SchedulerMissing."""
        with self._lock:
            if not self._token or self._token == refused or time.time() > self._expires - EARLY_S:
                status = self._ask()
                self._token, self._expires = str(status["token"]), _epoch(status.get("expirationTimestamp"))
            return self._token

    def _ask(self) -> dict[str, Any]:
        said = self._settings
        directory = Path(self._config.fname).parent if self._config.fname else Path()
        command = str(directory / said.command) if os.sep in said.command else said.command
        env = {**os.environ, **{one.name: one.value for one in said.env or ()}}
        env["KUBERNETES_EXEC_INFO"] = json.dumps(self._info())
        try:
            done = subprocess.run(
                [command, *(said.args or ())], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=PROGRAM_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            hint = f"; {said.installHint.strip()}" if said.installHint else ""
            raise SchedulerMissing(f"{self._what} cannot be run: {error}{hint}") from error
        if done.returncode:
            raise SchedulerMissing(f"{self._what} exited with status {done.returncode}: {done.stderr.strip()[-500:]}")
        try:
            status = json.loads(done.stdout)["status"]
            if status.get("token"):
                return dict(status)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchedulerMissing(f"{self._what} said nothing that can be read: {error}") from error
        raise SchedulerMissing(f"{self._what} gives no token; client certificates of such programs are not supported")

    def _info(self) -> dict[str, Any]:
        cluster = self._config.cluster
        info = {"server": cluster.server, "insecure-skip-tls-verify": cluster.insecure}
        if cluster.certificate_auth_data:
            info["certificate-authority-data"] = cluster.certificate_auth_data
        return {
            "apiVersion": self._settings.apiVersion,
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": info},
        }


def as_auth(program: Tokens) -> httpx2.Auth:
    """Return httpx's interface to a source of tokens. The class is local because httpx is imported on first use."""
    import httpx2

    class ByProgram(httpx2.Auth):
        def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
            token = program.token()
            request.headers["Authorization"] = f"Bearer {token}"
            if (yield request).status_code == httpx2.codes.UNAUTHORIZED:
                request.headers["Authorization"] = f"Bearer {program.token(refused=token)}"
                yield request

        async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            token = await asyncio.to_thread(program.token)
            request.headers["Authorization"] = f"Bearer {token}"
            if (yield request).status_code == httpx2.codes.UNAUTHORIZED:
                request.headers["Authorization"] = f"Bearer {await asyncio.to_thread(program.token, token)}"
                yield request

    return ByProgram()


def _epoch(stamp: object) -> float:
    """Return the seconds of an expirationTimestamp. Without one, a token is used until it is refused."""
    return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else float("inf")
