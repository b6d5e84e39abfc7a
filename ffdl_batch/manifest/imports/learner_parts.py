"""Parts of a manifest that readers of several formats make: variables, images, commands, memory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from collections.abc import Mapping as Mappings
from dataclasses import field

from ffdl_batch.domain.conversion import Conversion
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.domain.job.secret_references import reference
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.credentials import is_secret, secret_name
from ffdl_batch.manifest.document.tree import Place
from ffdl_batch.manifest.imports.foreign_file import ForeignFile, lost, mapped, near

_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
NO_IMAGE = "custom"
"""The version of a manifest that names no image."""
NODE_NAMES = '$(cut -d" " -f1 "$JOB_STATE_DIR/.hostfile" 2>/dev/null || echo "$MASTER_ADDR")'
"""The names of the learners' nodes, one a line, for a shell: the host file exists if there are several."""


@dataclass(slots=True)
class Variables:
    """The variables of the learners' environment."""

    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def put(self, file: ForeignFile, place: Place, name: str, value: str) -> None:
        """Set a variable; the value of a credential stays out of the manifest and of the report."""
        refused = why_refused(name)
        if refused:
            file.judge(place, lost(refused))
        elif is_secret(name, value):
            self.keep(file, place, name, secret_name(name))
        elif self.env.get(name, value) != value:
            file.judge(place, lost(f"all learners have one value of {name}: {self.env[name]}"))
        else:
            self.env[name] = value
            file.judge(place, mapped("batch.env"))

    def keep(self, file: ForeignFile, place: Place, name: str, secret: str) -> None:
        """Set a variable to a secret that the user has to store."""
        file.hide(place)
        if refused := why_refused(name):
            file.judge(place, lost(refused))
            return
        self.secrets[name] = reference(secret)
        file.judge(place, mapped("batch.secrets", f"set its value with: ffdl secret set {secret}"))

    def ask(self, file: ForeignFile, place: Place, name: str) -> None:
        """Set a variable to that of the submitting command."""
        if refused := why_refused(name):
            file.judge(place, lost(refused))
            return
        self.secrets[name] = f"${{env:{name}}}"
        file.judge(place, near("batch.secrets", "the variable has to be set when the job is submitted"))

    def keys(self) -> dict[str, object]:
        """Return the keys of `batch:`."""
        return {key: value for key, value in (("env", self.env), ("secrets", self.secrets)) if value}


def framework_of(image: str, command: str) -> dict[str, object]:
    """Return `framework:` for an image of a registry, or "" for none."""
    version = f"docker://{image}" if image else NO_IMAGE
    return {"name": "custom", "version": version, "command": command}


def exports_for(text: str, values: Mappings[str, str]) -> str:
    """Return the lines that set the variables of another system that `text` reads; `values` are words of the shell."""
    names = [name for name in values if re.search(rf"\b{name}\b", text)]
    return "".join(f"export {name}={values[name]}\n" for name in names)


def shell_words(words: Sequence[str], variables: Collection[str]) -> str:
    """Return the shell command of a program and its arguments, in which ``$(NAME)`` is a variable, as Kubernetes has
    it. The text that bash is given is the command itself."""
    if len(words) == 3 and words[0].rsplit("/", 1)[-1] == "bash" and words[1] in ("-c", "-ec", "-lc"):
        script = _VARIABLE.sub(lambda match: _in_script(match, variables), words[2])
        return f"set -e\n{script}" if "e" in words[1] else script
    return " ".join(_shell_word(word, variables) for word in words)


def expanded(text: str, values: Mappings[str, str]) -> str:
    """Return a value of a variable in which ``$(NAME)`` is one of the variables before it."""
    return _VARIABLE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def _in_script(match: re.Match[str], variables: Collection[str]) -> str:
    if match[1] in variables:
        return f"${{{match[1]}}}"
    return "$" if match[0] == "$$" else match[0]


def _shell_word(word: str, variables: Collection[str]) -> str:
    shell, literal, position = "", "", 0
    for match in _VARIABLE.finditer(word):
        literal += word[position : match.start()]
        position = match.end()
        if match[1] in variables:
            shell += (shlex.quote(literal) if literal else "") + f'"${{{match[1]}}}"'
            literal = ""
        else:
            literal += "$" if match[0] == "$$" else match[0]
    literal += word[position:]
    return shell + (shlex.quote(literal) if literal or not shell else "")


def memory_text(gib: float) -> str:
    """Return an amount of memory in GiB for a manifest."""
    return f"{gib:g}GiB" if gib >= 1 else f"{max(1, round(gib * 1024))}MiB"


def conversion_of(file: ForeignFile, manifest: Mappings[str, object], image: str) -> Conversion:
    """Return the manifest without empty values, and the report. `image` counts if the file names none."""
    kept = {key: value for key, value in manifest.items() if value not in (None, "", {})}
    framework = kept["framework"]
    if image and isinstance(framework, dict) and framework["version"] == NO_IMAGE:
        kept["framework"] = {**framework, "version": image}
    return Conversion(kept, tuple(file.judged()))
