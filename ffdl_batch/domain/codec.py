"""Frozen dataclasses to and from plain JSON values, for what is stored and what crosses processes.

Runs on Python 3.9. A key that the class does not know is ignored (a newer release wrote it); a missing key
takes the field's default, and is an error where there is none. A class may name a field `in_` for the key `in`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import typing
from typing import Any, Dict, Mapping, Tuple, Type, TypeVar

T = TypeVar("T")
_SCALARS = (str, int, float, bool)
_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})


class CodecError(ValueError):
    """A value that does not fit the class it is read into; the message names the path."""


def to_plain(value: Any) -> Any:
    """Return JSON-ready dicts, lists and scalars of a dataclass, mapping, tuple, enum or scalar."""
    kind = type(value)
    if kind in _AS_THEY_ARE:  # most values are; subclasses of them are looked at below
        return value
    if dataclasses.is_dataclass(kind):
        return {key: to_plain(getattr(value, name)) for name, key in _keys(kind)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, collections.abc.Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    if isinstance(value, (frozenset, set)):
        return sorted(to_plain(v) for v in value)
    if isinstance(value, _SCALARS):
        return value
    raise CodecError(f"{type(value).__name__} has no plain form")


@functools.lru_cache(maxsize=None)
def _keys(cls: Any) -> Tuple[Tuple[str, str], ...]:
    """The fields of a dataclass, and their keys."""
    return tuple((f.name, f.name.rstrip("_")) for f in dataclasses.fields(cls))


def from_plain(cls: Type[T], plain: Any, path: str = "$") -> T:
    """Return the dataclass `cls` from what :func:`to_plain` returned. Raises :class:`CodecError`."""
    if not isinstance(plain, collections.abc.Mapping):
        raise CodecError(f"{path}: a mapping is needed for {cls.__name__}")
    hints = _hints(typing.cast(Any, cls))
    values: Dict[str, Any] = {}
    for f in dataclasses.fields(typing.cast(Any, cls)):
        key = f.name.rstrip("_")
        if key in plain:
            values[f.name] = _read(hints[f.name], plain[key], f"{path}.{key}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise CodecError(f"{path}.{key} is missing")
    return cls(**values)


@functools.lru_cache(maxsize=None)
def _hints(cls: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if type(None) in arguments:
        if value is None:
            return None
        return _read(next(a for a in arguments if a is not type(None)), value, path)
    if origin in (tuple, list, frozenset):
        if not isinstance(value, list):
            raise CodecError(f"{path}: a list is needed")
        return origin(_read(arguments[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, collections.abc.Mapping):
            raise CodecError(f"{path}: a mapping is needed")
        return {k: _read(arguments[1], v, f"{path}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast(Any, hint), value, path)
    return _read_scalar(hint, value, path)


def _read_scalar(hint: Any, value: Any, path: str) -> Any:
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise CodecError(f"{path}: {value!r} is none of {', '.join(str(m.value) for m in hint)}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise CodecError(f"{path}: {type(value).__name__} found, {hint.__name__} needed")
