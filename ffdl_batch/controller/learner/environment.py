"""Build a learner's environment, and quote it for the file that a container runtime evaluates.

Apptainer (1.4, 1.5) evaluates ``--env-file`` with mvdan's shell interpreter. Then it writes every variable into a
script of single-quoted exports, which the same interpreter reads (with ``--no-eval``; sources:
``internal/pkg/util/env/env.go``, ``internal/pkg/runtime/engine/apptainer/process_linux.go``). That preserves values,
except those of a few special names, and carriage returns before a newline, which its lexer drops. Such variables are in
EXPORTS_VARIABLE, as text that the learner's own bash evaluates.
"""

from __future__ import annotations

import json
import shutil
from typing import Dict, Mapping, Sequence, Tuple

from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, DamagedFile, read_whole
from ffdl_batch.domain.job.environment_variables import RUNTIME_PREFIXES, why_refused, why_too_long
from ffdl_batch.domain.launch.launch_file import EXPORTS_VARIABLE

_ALTERED = frozenset(
    {"HOME", "PATH", "PREPEND_PATH", "APPEND_PATH", "LD_LIBRARY_PATH", "PREPEND_LD_LIBRARY_PATH"}
    | {"APPEND_LD_LIBRARY_PATH", "PROMPT_COMMAND", "LANG"}
)
"""Variables that Apptainer changes, of those that learners can be given."""
_SHOWN = 200


class EnvironmentRefused(ValueError):
    """A variable cannot be given to a learner; the message names it and the reason."""


def host_subset(host: Mapping[str, str], names: Sequence[str]) -> Dict[str, str]:
    """Return the node's variables that learners get. Settings of container runtimes are never among them."""
    exact = {name for name in names if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in host.items()
        if (name in exact or (prefixes and name.startswith(prefixes))) and not name.startswith(RUNTIME_PREFIXES)
    }


def read_file(path: str) -> str:
    """Return the text of ``environment.json`` or ``secrets.json``; "" if it is missing. Raises EnvironmentRefused if it
    is damaged, OSError."""
    try:
        return read_whole(path, MAX_TEXT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except DamagedFile as error:
        raise EnvironmentRefused(str(error)) from None


def read_user_environment(text: str) -> Dict[str, str]:
    """Return the variables in ``environment.json``. Raises EnvironmentRefused if it is not an object of strings."""
    try:
        body = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise EnvironmentRefused(f"environment.json is damaged: {error}") from error
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise EnvironmentRefused("environment.json must be an object whose values are strings")
    return dict(body)


def pick_secrets(text: str, wanted: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of the variables `wanted` (variable → secret) from the attempt's ``secrets.json``.

    Raises EnvironmentRefused, whose message contains no value.
    """
    try:
        body = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise EnvironmentRefused("secrets.json is damaged") from None
    values = body if isinstance(body, dict) else {}
    missing = [name for name in wanted.values() if not isinstance(values.get(name), str)]
    if missing:
        raise EnvironmentRefused(f"secrets.json of the attempt does not have {', '.join(missing)}")
    return {variable: values[name] for variable, name in wanted.items()}


def merge(contract: Mapping[str, str], user: Mapping[str, str], protected: Sequence[str]) -> Dict[str, str]:
    """Return the contract's variables, overridden by the user's except for protected names."""
    merged = dict(contract)
    merged.update({name: value for name, value in user.items() if name not in protected})
    for name, value in merged.items():
        check_variable(name, value)
    return merged


def check_shell(user: Mapping[str, str]) -> None:
    """Refuse a user's PATH without bash, which a learner without a container needs."""
    path = user.get("PATH")
    if path is not None and shutil.which("bash", path=path) is None:
        shown = path if len(path) <= _SHOWN else path[:_SHOWN] + "..."
        raise EnvironmentRefused(
            f"there is no bash on the PATH that the job was given ({shown!r}): end it with the system's own "
            "directories, as /usr/bin:/bin"
        )


def check_variable(name: str, value: str) -> None:
    """Refuse a variable that no process can have."""
    refused = why_refused(name)
    if refused:
        raise EnvironmentRefused(refused)
    if "\0" in value:
        raise EnvironmentRefused(f"{name} has a NUL character, which an environment cannot contain")
    too_long = why_too_long(name, value)
    if too_long:
        raise EnvironmentRefused(too_long)


def file_text(variables: Mapping[str, str]) -> str:
    """Return the text of the file for ``--env-file``. Variables that Apptainer would change are evaluated by bash.

    Raises EnvironmentRefused.
    """
    direct, exports = split(variables)
    if exports:
        direct[EXPORTS_VARIABLE] = "".join(
            f"export {name}={ansi_c(value)}\n" for name, value in sorted(exports.items())
        )
        if why_too_long(EXPORTS_VARIABLE, direct[EXPORTS_VARIABLE]):
            names = ", ".join(sorted(exports, key=lambda name: len(exports[name]), reverse=True)[:3])
            raise EnvironmentRefused(f"{names}: escaped for the container runtime, the values are too long; use a file")
    return "".join(f"{name}={single_quoted(value)}\n" for name, value in sorted(direct.items()))


def split(variables: Mapping[str, str]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the variables that a container runtime preserves, and those that it would change."""
    exports = {n: v for n, v in variables.items() if n in _ALTERED or "\r" in v or "\\\n" in v or not _is_text(v)}
    return {n: v for n, v in variables.items() if n not in exports}, exports


def single_quoted(value: str) -> str:
    """Return the text in POSIX single quotes (XCU 2.2.2).

    A single quote in it is put into double quotes, because Apptainer 1.4.5 keeps the backslash of ``'\\''``.
    """
    return "'" + value.replace("'", "'\"'\"'") + "'"


def ansi_c(value: str) -> str:
    """Return the text as bash's ``$'…'`` in printable ASCII."""
    raw = value.encode("utf-8", "surrogateescape")
    safe = frozenset(range(ord(" "), ord("~") + 1)) - frozenset(b"'\\")
    return "$'" + "".join(chr(byte) if byte in safe else f"\\{byte:03o}" for byte in raw) + "'"


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
