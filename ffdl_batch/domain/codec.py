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
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Type, TypeVar

T = TypeVar("T")
_SCALARS = (str, int, float, bool)
_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})


class CodecError(ValueError):
    """A value that does not fit the class it is read into; the message names the path."""


def to_plain(value: Any) -> Any:
    """Return JSON-ready dicts, lists and scalars of a dataclass, mapping, tuple, enum or scalar."""
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:  # most values are; subclasses of them are looked at below
        return value
    keys = _keys(kind)
    if keys is not None:
        return {key: to_plain(getattr(value, name)) for name, key in keys}
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
def _keys(cls: Any) -> Optional[Tuple[Tuple[str, str], ...]]:
    """The fields of a dataclass, and their keys; None for another class."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple((f.name, f.name.rstrip("_")) for f in dataclasses.fields(cls))


def from_plain(cls: Type[T], plain: Any, path: str = "$") -> T:
    """Return the dataclass `cls` from what :func:`to_plain` returned. Raises :class:`CodecError`."""
    try:
        return typing.cast(T, _read_class(cls, plain))
    except _Misfit as error:
        raise CodecError(f"{path}{''.join(reversed(error.steps))}{error.text}") from None


class _Misfit(Exception):
    """A value does not fit. `steps` is the way to it, the last step first."""

    def __init__(self, text: str, step: str = "") -> None:
        super().__init__(text)
        self.text, self.steps = text, [step]


_Read = Callable[[Any], Any]
"""Returns what a plain value stands for. Raises _Misfit."""


class _Field(NamedTuple):
    name: str
    key: str
    kept: FrozenSet[type]
    """Values of these types stand for themselves."""
    read: _Read
    is_required: bool


def _read_class(cls: Any, plain: Any) -> Any:
    if not isinstance(plain, collections.abc.Mapping):
        raise _Misfit(f": a mapping is needed for {cls.__name__}")
    values: Dict[str, Any] = {}
    for name, key, kept, read, is_required in _fields(cls):
        if key in plain:
            value = plain[key]
            if type(value) not in kept:
                try:
                    value = read(value)
                except _Misfit as error:
                    error.steps.append(f".{key}")
                    raise
            values[name] = value
        elif is_required:
            raise _Misfit(" is missing", f".{key}")
    return cls(**values)


@functools.lru_cache(maxsize=None)
def _fields(cls: Any) -> Tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        is_required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        kept = frozenset((hint, *typing.get_args(hint))) & _AS_THEY_ARE if _is_scalar(hint) else frozenset()
        found.append(_Field(f.name, f.name.rstrip("_"), kept, _reader(hint), is_required))
    return tuple(found)


def _is_scalar(hint: Any) -> bool:
    """Return whether values of a scalar type, or None, are expected."""
    return hint in _AS_THEY_ARE or type(None) in typing.get_args(hint)


def _reader(hint: Any) -> _Read:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any or hint is object:
        return lambda value: value
    if type(None) in arguments:
        inner = _reader(next(a for a in arguments if a is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin in (tuple, list, frozenset):
        return functools.partial(_read_list, origin, _reader(arguments[0]))
    if origin in (dict, collections.abc.Mapping):
        return functools.partial(_read_mapping, _reader(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return functools.partial(_read_class, hint)
    return functools.partial(_read_scalar, getattr(hint, "__supertype__", hint))


def _read_list(kind: Callable[[List[Any]], Any], read: _Read, value: Any) -> Any:
    if not isinstance(value, list):
        raise _Misfit(": a list is needed")
    found: List[Any] = []
    try:
        for one in value:
            found.append(read(one))
    except _Misfit as error:
        error.steps.append(f"[{len(found)}]")
        raise
    return kind(found)


def _read_mapping(read: _Read, value: Any) -> Any:
    if not isinstance(value, collections.abc.Mapping):
        raise _Misfit(": a mapping is needed")
    found = {}
    for key, one in value.items():
        try:
            found[key] = read(one)
        except _Misfit as error:
            error.steps.append(f".{key}")
            raise
    return found


def _read_scalar(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise _Misfit(f": {value!r} is none of {', '.join(str(m.value) for m in hint)}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise _Misfit(f": {type(value).__name__} found, {hint.__name__} needed")
