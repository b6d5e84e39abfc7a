"""Create dataclasses about 20 times faster than the standard library. Must run on Python 3.9.

For each frozen class the standard library compiles six methods at import, which takes about 1 ms with CPython 3.11.
Over all classes, this was nearly half of the time that a command, a daemon or a controller needed to start. Here
``__init__`` is compiled when the first object is made, and the other methods are the same code for all classes. The
standard library's `field`, `fields`, `replace`, `asdict` and `is_dataclass` work as usual. Not supported: defaults of
fields with ``init=False``, `order`, `kw_only`.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass  # noqa: TID251 - the type checker knows it
else:

    def dataclass(cls: Optional[type] = None, *, frozen: bool = False, eq: bool = True, **options: bool) -> Any:
        """Behave as :func:`dataclasses.dataclass`. `options` can have ``slots`` (Python 3.10)."""

        def make(given: type) -> type:
            given.__doc__ = given.__doc__ or given.__name__  # otherwise it gets the signature, which is slow
            made = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(given)  # noqa: TID251
            for name, method in _methods(made, dataclasses.fields(made), frozen, eq).items():
                setattr(made, name, method)
            return made

        return make if cls is None else make(cls)


_UNSET = object()


def _methods(cls: type, members: Sequence[Any], frozen: bool, eq: bool) -> Dict[str, Any]:
    names = [member.name for member in members]
    values: Callable[[object], Any] = attrgetter(*names) if names else type
    shown = [member.name for member in members if member.repr]

    def first_init(self: Any, *positional: Any, **named: Any) -> None:
        init = _init(cls, members, frozen)
        setattr(cls, "__init__", init)  # noqa: B010 - only this function knows the class
        init(self, *positional, **named)

    def show(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def equal(self: object, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    methods: Dict[str, Any] = {"__init__": first_init}
    if "__repr__" not in vars(cls):
        methods["__repr__"] = show
    if eq:
        methods.update(__eq__=equal, __hash__=(lambda self: hash(values(self))) if frozen else None)
    if frozen:
        methods.update(__setattr__=_refuse_assignment, __delattr__=_refuse_deletion)
    return methods


def _init(cls: type, members: Sequence[Any], frozen: bool) -> Any:
    """Compile the method that sets the fields."""
    names: Dict[str, Any] = {"_set": object.__setattr__, "_unset": _UNSET}
    parameters, lines = ["self"], ["pass"]
    for member in members:
        if not member.init:
            continue
        name, value = member.name, member.name
        if member.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = member.default
            parameters.append(f"{name}=_default_{name}")
        elif member.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = member.default_factory
            parameters.append(f"{name}=_unset")
            value = f"_make_{name}() if {name} is _unset else {name}"
        else:
            parameters.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    made: Dict[str, Any] = {}
    body = "\n ".join(lines)
    exec(f"def __init__({', '.join(parameters)}):\n {body}", names, made)  # noqa: S102 - the class's own names
    made["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return made["__init__"]


def _refuse_assignment(_: object, name: str, __: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
