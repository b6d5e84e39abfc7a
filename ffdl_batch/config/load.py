"""Reads and merges the configuration.

Later wins: ``/etc/ffdl/site.toml``, ``/etc/xdg/ffdl/config.toml``, ``$XDG_CONFIG_HOME/ffdl/config.toml``,
``./ffdl.toml``, ``$FFDL_CONFIG`` (a file), then ``FFDL_<KEY>`` variables (an empty one counts as
unset). An unknown key is an error that names the file: a misspelt setting that is silently ignored costs a night.

A file is used only if no user but the caller and root can change it, or replace it in its directory. ``./ffdl.toml``
may set only harmless settings, because the user does not name it. A line on standard error reports that it is used or
ignored.

Every command that talks to the daemon comes through here: what only some configurations need is imported late.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.reader import kind_of, open_regular
from ffdl_batch.config.daemon_location import find_other_writers
from ffdl_batch.config.settings import FrameworkImages, ImagePolicy, Settings, builtin_frameworks
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.harmless_settings import harmless_keys
from ffdl_batch.domain.incidents.site_settings import NodeRules
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.domain.toml_text import parse_toml, shown_toml
from ffdl_batch.host.users import base_directory, home_of_caller

SITE_FILES = (Path("/etc/ffdl/site.toml"), Path("/etc/xdg/ffdl/config.toml"))
_TABLES_OF_PROGRAMS = ("spawner", "hub")
"""Tables of a site file that only the programs of site mode read."""
_OWN_NAME = "ffdl.toml"
TAKEN_OVER = "taken-over-by-site"
"""A file in the state directory of a personal daemon: the site's daemon has its jobs now."""
_PATHS = ("state_dir", "jobs_dir", "metrics_textfile", "cache_dir")
_TEXTS = ("backend", "database_url", "host", "host_program", "hub_url", "default_memory", "log_file_size", "log_rate")
_SWITCHES = ("check_images", "log_json", "trust_hub_sessions")
_OF_SITE = ("egress", "image_policy", "trust_hub_sessions")
"""Settings that only the site file may have, because they bind the users of the site."""
_SIZES = {"default_memory": 1, "log_file_size": 64 * 1024, "log_rate": 1024, "cache_bytes": 0}
"""Sizes, and the least that each may be."""
_NUMBERS = {"log_files": (1, 1000), "metrics_port": (0, 65535)}
"""Whole numbers, the least and the greatest."""
_SECONDS = ("watch_interval_s", "doorbell_interval_s", "lease_s", "idle_exit_s")
_SECONDS_OR_OFF = ("silent_s",)
"""Times that are switched off by 0."""
_MOST_BYTES = 1024**2
"""Maximum size of a configuration file."""
_MOST = 1_000_000_000
"""Maximum of times, some 31 years, and of `default_cpus`."""
_MERGED_TABLES = ("rates", "notices")
"""Several files set these key by key."""
_TABLES = ("frameworks", "backends", *_MERGED_TABLES, "retention", "nodes", "fault_policies", "image_policy", "elastic")
"""Tables, which environment variables cannot set."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file and key."""


class _Untrusted(ConfigError):
    """A file that another user may have written or replaced."""


def home_directory(environ: Mapping[str, str]) -> Path:
    """Return the caller's home directory. Raises ConfigError if nothing says where it is."""
    try:
        return Path(home_of_caller(environ))
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None


def load_settings(*, cwd: Path | None = None, environ: Mapping[str, str] | None = None, site: bool = False) -> Settings:
    """Return the merged configuration. With `site`, it is that of a daemon that the site's spawner started: by default
    job directories are below the home directory, because the state directory is on a local disk, and `egress` bounds
    connections. They are those of the personal daemon if its jobs were taken over. Raises :class:`ConfigError`."""
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path, table in _read_files(cwd, env):
        for key, value in table.items():
            _merge(values, origins, key, value, str(path))
    for key in _known():
        name = f"FFDL_{key.upper()}"
        if env.get(name) and key not in _TABLES:
            _merge(values, origins, key, _from_text(key, env[name]), f"environment {name}")
    return _settings(values, origins, env, site=site)


def _read_files(cwd: Path | None, env: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Return the files with their tables. Values in later files win."""
    for path in _lasting_places(env):
        if path.is_file():
            yield path, _read(path)
        else:
            _report_ignored(path)
    named = Path(env["FFDL_CONFIG"]) if env.get("FFDL_CONFIG") else None
    if named is not None and not named.is_file():
        why = _why_not_regular(named) or "it does not exist"
        raise ConfigError(f"FFDL_CONFIG names {named}, but {why}; name a regular file, or run: unset FFDL_CONFIG")
    found = directory_file(cwd)
    if found is None:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # the directory is gone or closed
            _report_ignored((cwd or Path.cwd()) / _OWN_NAME)
    if found is not None and not (named is not None and named.samefile(found)):
        yield found, _read_found(found)
    if named is not None:
        yield named, _read(named)


def lasting_files(env: Mapping[str, str]) -> list[Path]:
    """Return the existing files of the site and the user, over which ``./ffdl.toml`` and $FFDL_CONFIG are laid."""
    return [path for path in _lasting_places(env) if path.is_file()]


def _lasting_places(env: Mapping[str, str]) -> tuple[Path, ...]:
    home_directory(env)
    user = Path(base_directory(env, "XDG_CONFIG_HOME", ".config"))
    return (*SITE_FILES, user / "ffdl" / "config.toml")


def directory_file(cwd: Path | None = None) -> Path | None:
    """The ``ffdl.toml`` of the working directory; None where there is none, or the directory is gone or closed."""
    try:
        path = (cwd or Path.cwd()) / _OWN_NAME
        return path if path.is_file() else None
    except (FileNotFoundError, PermissionError):
        return None


def _report_ignored(path: Path) -> None:
    """Report a path that exists but is not a regular file."""
    if why := _why_not_regular(path):
        _report(f"ignored {path}: {why}; remove it, or replace it by a regular file")


def _why_not_regular(path: Path) -> str:
    """Return why a path that exists is not a regular file; "" if it does not exist or cannot be looked up."""
    try:
        path.lstat()
    except OSError:
        return ""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "it is a link to a file that does not exist"
    except OSError as error:
        return f"it is a link that cannot be followed ({error.strerror})"
    return "" if stat.S_ISREG(mode) else f"it is {kind_of(mode)}, not a regular file"


def _read_found(path: Path) -> dict[str, Any]:
    """Return the table of the file in the working directory; {} if the file is not trusted.

    Raises ConfigError for a setting that is not harmless.
    """
    try:
        table = _read(path)
    except _Untrusted as error:
        _report(f"ignored {path}: {error}")
        return {}
    given, accepted = set(table) - {"backends"}, set(harmless_keys(Settings))
    if backends := _need_tables("backends", table.get("backends", {}), str(path)):
        from ffdl_batch.plugins import harmless_settings

        given |= {f"backend.{name}.{key}" for name, own in backends.items() for key in own}
        accepted |= {f"backend.{name}.{key}" for name in backends for key in harmless_settings(name)}
    if refused := sorted(given - accepted):
        raise ConfigError(
            f"{path}: {refused[0]} is not accepted in an ffdl.toml in the working directory, which may be another "
            f"person's; move it to ~/.config/ffdl/config.toml, or run: export FFDL_CONFIG={shlex.quote(str(path))}; "
            f"accepted are {', '.join(sorted(accepted))}"
        )
    _report(f"using {path}: {', '.join(sorted(given)) or 'it has no settings'}")
    return table


@functools.cache  # a command reads the configuration several times
def _report(text: str) -> None:
    """Write one line to standard error. Line feeds and escape sequences in a directory's name are escaped."""
    line = "".join(one if one.isprintable() else "?" for one in f"ffdl: {text}")
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def _load_trusted(path: Path) -> dict[str, Any]:
    """Return the table of a file that no other user can change or replace. Raises _Untrusted, ValueError, OSError.

    Links are followed if no other user can change the directory that they are in, and so choose the target. The file
    is opened below a descriptor of its directory, and both descriptors are checked. So the content comes from the file
    that was checked, even if the path changes meanwhile.
    """
    for link in _links(path):
        _refuse_others(link.parent, link.parent.stat())
    real = Path(os.path.realpath(path))
    directory = os.open(real.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_others(real.parent, os.fstat(directory))
        with open_regular(real.name, dir_fd=directory) as file:
            _refuse_others(real, os.fstat(file.fileno()))
            raw = file.read(_MOST_BYTES + 1)
            if len(raw) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes; name a configuration file")
            return parse_toml(raw)
    finally:
        os.close(directory)


def _links(path: Path) -> Iterator[Path]:
    """Return the links that the path leads through, those in targets of links too."""
    for place in (*reversed(path.absolute().parents), path.absolute()):
        if place.is_symlink():
            yield place
            yield from _links(place.parent / place.readlink())


def _refuse_others(place: Path, found: os.stat_result) -> None:
    if why := find_other_writers(found, (os.geteuid(), 0)):
        is_own = found.st_uid == os.geteuid()
        cure = f"run: chmod go-w {shlex.quote(str(place))}" if is_own else "use a copy of yours in a directory of yours"
        raise _Untrusted(f"{place} {why}; {cure}")


def site_state_dir(uid: int) -> Path:
    """Return the state directory of the daemon that the site's spawner starts for a user. Raises ConfigError."""
    try:
        table = _load_trusted(SITE_FILES[0]).get("spawner", {})
        return Path(table.get("state_dir", "/var/lib/ffdl"), str(uid), "state")
    except (FileNotFoundError, NotADirectoryError):
        return Path("/var/lib/ffdl", str(uid), "state")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{SITE_FILES[0]}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        table = _load_trusted(path)
    except _Untrusted:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if "backend" in table and isinstance(table["backend"], dict):
        table["backends"] = table.pop("backend")
        default = table["backends"].pop("default", None)
        if default is not None:
            table["backend"] = default
    if path in SITE_FILES:
        table = {key: value for key, value in table.items() if key not in _TABLES_OF_PROGRAMS}
    known = _known()
    for key in table:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"{path}: unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
    return table


def _known() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Settings) if f.name != "origins")


def _merge(values: dict[str, Any], origins: dict[str, str], key: str, value: Any, origin: str) -> None:
    if key in ("frameworks", "backends"):
        merged = values.setdefault(key, {})
        for name, table in _need_tables(key, value, origin).items():
            merged[name] = merged.get(name, {}) | table
            for field_name in table:
                origins[f"{key.rstrip('s')}.{name}.{field_name}"] = origin
        return
    if key == "retention":
        from ffdl_batch.config.tables import shorter_retention

        try:
            retention = shorter_retention(values.get(key), value)
        except ValueError as error:
            raise ConfigError(f"{origin}: retention{error}") from None
        if retention == values.get(key):
            return
        values[key] = retention
    elif key in ("nodes", "fault_policies"):
        _merge_faults(values, key, value, origin)
    elif key in _MERGED_TABLES:
        if not isinstance(value, dict):
            raise ConfigError(f"{origin}: {key} must be a table")
        values[key] = values.get(key, {}) | value
        origins.update((f"{key}.{name}", origin) for name in value)
    else:
        values[key] = value
    origins[key] = origin


def _need_tables(key: str, value: Any, origin: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise ConfigError(f"{origin}: {key} must be tables")
    return value


def _from_text(key: str, text: str) -> Any:
    if key == "images_dirs":
        return [part for part in text.split(":") if part]
    if key in _SWITCHES:
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise ConfigError(f"FFDL_{key.upper()}: {shown_toml(text)} is neither true nor false")
        return text.lower() in ("true", "1", "yes")
    if key in _NUMBERS or key == "cache_bytes":
        number = whole_number(text, 2**63 - 1)
        return text if number is None else number
    if key in (*_SECONDS, *_SECONDS_OR_OFF, "default_cpus"):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"FFDL_{key.upper()}: {shown_toml(text)} is not a number") from None
    return text


def _settings(values: dict[str, Any], origins: dict[str, str], env: Mapping[str, str], *, site: bool) -> Settings:
    home, state = home_directory(env), personal_state_dir(env)
    checked: dict[str, Any] = {"state_dir": str(state)}
    for key, value in values.items():
        if key in _MERGED_TABLES:
            checked[key] = _read_table(key, value, origins)
        elif key == "nodes":
            checked[key] = NodeRules(**value)
        else:
            checked[key] = _check(key, value, origins.get(key, key), home)
    checked.setdefault("jobs_dir", str(_jobs_dir_of_site(state, checked) if site else checked["state_dir"]))
    checked.setdefault("egress", () if site else None)
    checked.setdefault("images_dirs", _default_images(env))
    return Settings(**checked, origins=origins)


def personal_state_dir(env: Mapping[str, str]) -> Path:
    """Return the state directory of a personal daemon, if nothing names another one. Raises ConfigError."""
    try:
        return Path(base_directory(env, "XDG_STATE_HOME", ".local/state"), "ffdl")
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None


def _jobs_dir_of_site(personal: Path, checked: Mapping[str, Any]) -> Path:
    """Return where the jobs of a site's daemon are by default: those of the personal daemon that it continues, or a
    directory of its own, because a tree of job directories belongs to one database."""
    try:
        continues = (personal / TAKEN_OVER).exists() or (checked.get("database_url") and (personal / "jobs").exists())
    except OSError:
        continues = False
    return personal if continues else personal.with_name("ffdl-site")


def _default_images(env: Mapping[str, str]) -> tuple[str, ...]:
    data = base_directory(env, "XDG_DATA_HOME", ".local/share")
    return (f"{data}/ffdl/images", "/usr/local/share/ffdl/images", "/opt/ffdl/images")


def _check(key: str, value: Any, origin: str, home: Path) -> Any:
    """The typed value of one key, or a ConfigError that names it."""

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise ConfigError(f"{origin}: {key} must be {what}, not {shown_toml(value)}")

    if key in _PATHS and (value or key != "cache_dir"):
        need(isinstance(value, str) and bool(value), "a path")
        path = home / value[2:] if value.startswith("~/") else Path(value)
        need(path.is_absolute(), "an absolute path")
        return str(path)
    if key in _TEXTS:
        need(isinstance(value, str), "text")
        if key in _SIZES:
            _check_size(key, value, origin)
        return value
    if key in (*_SECONDS, *_SECONDS_OR_OFF, *_NUMBERS, "default_cpus"):
        return _check_number(key, value, need)
    if key in _OF_SITE and origin != str(SITE_FILES[0]):
        raise ConfigError(f"{origin}: only {SITE_FILES[0]} may set {key}")
    if key in _SWITCHES:
        need(isinstance(value, bool), "true or false")
    if key == "cache_bytes":
        need(isinstance(value, str) or (type(value) is int and value >= 0), "a size, as 500GB, or bytes")
        return _check_size(key, value, origin) if isinstance(value, str) else value
    if key == "images_dirs":
        need(_is_texts(value), "a list of paths")
        return tuple(str(home / v[2:]) if v.startswith("~/") else v for v in value)
    if key == "network_minimum":
        levels = [level for level in NetworkLevel if level is not NetworkLevel.AUTO]
        need(value in levels, f"one of {', '.join(levels)}")
        return NetworkLevel(value)
    if key == "data_mount":
        need(value in [one.value for one in Mounting], f"one of {', '.join(one.value for one in Mounting)}")
        return Mounting(value)
    if key == "egress":
        _check_egress(value, need)
        value = tuple(value)
    tables: Mapping[str, Callable[[Any, str], Any]] = {
        "frameworks": _frameworks,
        "image_policy": _image_policy,
        "elastic": _elastic_pools,
    }
    return tables[key](value, origin) if key in tables else value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _check_egress(value: Any, need: Callable[[bool, str], None]) -> None:
    from ffdl_batch.host.egress import first_invalid

    need(_is_texts(value) and not first_invalid(value), "a list of networks, as 192.0.2.0/24")


def _check_number(key: str, value: Any, need: Callable[[bool, str], None]) -> float | int:
    if key in _NUMBERS:
        least, most = _NUMBERS[key]
        need(type(value) is int and least <= value <= most, f"a whole number from {least} to {most}")
        return int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in _SECONDS_OR_OFF:
        need(is_number and 0 <= value <= _MOST, f"a number from 0 to {_MOST}")
    else:
        need(is_number and 0 < value <= _MOST, f"a number above 0, up to {_MOST}")
    return float(value)


def _check_size(key: str, value: str, origin: str) -> int:
    from ffdl_batch.domain.quantity import parse_size

    try:
        size = parse_size(value)
    except ValueError as error:
        raise ConfigError(f"{origin}: {key}: {error}") from None
    if size < _SIZES[key]:
        raise ConfigError(f"{origin}: {key} must be {_SIZES[key]} bytes at least, not {shown_toml(value)}")
    return size


def _frameworks(tables: dict[str, Any], origin: str) -> dict[str, FrameworkImages]:
    merged = builtin_frameworks()
    for name, table in tables.items():
        versions, template, oci = table.get("versions", {}), table.get("template", ""), table.get("oci", {})
        maps = (versions, oci)
        good = all(isinstance(one, dict) and all(isinstance(v, str) for v in one.values()) for one in maps)
        if not good or not isinstance(template, str) or set(table) - {"versions", "template", "oci"}:
            wanted = "tables `versions` and `oci` of texts, and a text `template`"
            raise ConfigError(f"{origin}: frameworks.{name} takes {wanted}")
        old = merged.get(name, FrameworkImages())
        merged[name] = FrameworkImages({**old.versions, **versions}, template or old.template, {**old.oci, **oci})
    return merged


def _image_policy(table: Any, origin: str) -> ImagePolicy:
    from ffdl_batch.config.tables import read_image_policy

    try:
        return read_image_policy(table)
    except ValueError as error:
        raise ConfigError(f"{origin}: image_policy{error}") from None


def _elastic_pools(table: Any, origin: str) -> Any:
    from ffdl_batch.config.tables import read_elastic_pools

    try:
        return read_elastic_pools(table)
    except ValueError as error:
        raise ConfigError(f"{origin}: elastic{error}") from None


def _merge_faults(values: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Append policies to those of earlier files; let node rules replace earlier ones, key by key."""
    from ffdl_batch.config.tables import check_names, read_node_rules, read_policies

    try:
        if key == "fault_policies":
            values[key] = check_names((*values.get(key, ()), *read_policies(value, origin)), origin)
            return
        if not isinstance(value, dict):
            raise ValueError(f"{origin}: nodes must be a table")
        values[key] = values.get(key, {}) | read_node_rules(value, origin)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _read_table(key: str, table: dict[str, Any], origins: Mapping[str, str]) -> object:
    """Check one of _MERGED_TABLES; `origins` has the file of each key."""
    from ffdl_batch.config.tables import read_notices, read_rates

    try:
        return read_rates(table, origins) if key == "rates" else read_notices(table, origins)
    except ValueError as error:
        raise ConfigError(str(error)) from None
