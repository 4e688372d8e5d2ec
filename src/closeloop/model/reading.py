"""Turn what people wrote into records; a fault names the file, the field and the nearest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from closeloop.model.errors import BadInput

T = TypeVar("T")

_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a section with fields",
    "str": "text",
}


def read_record(value: Any, kind: type[T], file: str, *, strict: bool = True) -> T:
    """The record that some plain data describes.

    A single text stands for a list of one. Not strict: numbers and truths may come as text.
    """
    return _Reader(file, strict).read(value, kind, "")  # type: ignore[no-any-return]


def read_json(content: bytes, file: str) -> Any:
    """The plain data that JSON describes."""
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON: {error}.") from None


def no_field(file: str, field: str, known: Iterable[str]) -> BadInput:
    """`tasks/x.md: no field 'acceptence'. Did you mean 'acceptance'?`"""
    above, _, name = field.rpartition(".")
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    prefix = f"{above}." if above else ""
    hint = f"Did you mean {prefix + near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return BadInput(f"{file}: no field {field!r}. {hint}")


def read_change(record: T, changes: Mapping[str, Any], file: str, path: str) -> T:
    """A record with some of its fields said anew; `path` is where in the file they stand."""
    changed = {**msgspec.to_builtins(record), **changes}
    return _Reader(file, strict=True).read(changed, type(record), path)  # type: ignore[no-any-return]


class _Reader:
    def __init__(self, file: str, strict: bool) -> None:
        self.file = file
        self.strict = strict

    def read(self, value: Any, kind: Any, path: str) -> Any:
        options = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        if value is None and NoneType in options:
            return None
        for option in options:
            if _is_record(option):
                return self._struct(value, option, path)
            if get_origin(option) is tuple and _is_record(get_args(option)[0]):
                return self._list(value, get_args(option)[0], path)
            if get_origin(option) is dict:
                return self._dict(value, get_args(option)[1], path)
            if get_origin(option) is Literal and value not in get_args(option):
                raise self._not_among(value, get_args(option), path)
        if isinstance(value, str) and tuple[str, ...] in options:
            value = [value]
        try:
            return msgspec.convert(value, kind, strict=self.strict)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error), path) from None

    def _struct(self, value: Any, kind: type[msgspec.Struct], path: str) -> Any:
        self._demand_fields(value, path)
        kinds = _kinds(kind)
        for name in value:
            if name not in kinds:
                raise no_field(self.file, _joined(path, name), kinds)
        for name in _required(kind):
            if name not in value:
                raise BadInput(f"{self.file}: {_joined(path, name)!r} is missing.")
        return kind(
            **{
                name: self.read(item, kinds[name], _joined(path, name))
                for name, item in value.items()
            }
        )

    def _dict(self, value: Any, kind: Any, path: str) -> dict[str, Any]:
        self._demand_fields(value, path)
        return {name: self.read(item, kind, _joined(path, name)) for name, item in value.items()}

    def _list(self, value: Any, kind: type[msgspec.Struct], path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{self.file}: {path!r} must be {_WORDS['array']}.")
        return tuple(
            self._struct(item, kind, f"{path}[{number}]") for number, item in enumerate(value)
        )

    def _demand_fields(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise BadInput(f"{self.file}: {path!r} must be {_WORDS['object']}.")

    def _not_among(self, value: Any, known: tuple[Any, ...], path: str) -> BadInput:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return BadInput(
            f"{self.file}: {path!r} cannot be {value!r}.{hint} Known: {', '.join(sorted(known))}."
        )

    def _wrong(self, error: str, path: str) -> BadInput:
        what, _, inner = error.partition(" - at `$")
        wanted = what.removeprefix("Expected ").split(",")[0].replace(" | null", "").strip("`")
        words = " or ".join(_WORDS.get(word, word) for word in wanted.split(" | "))
        if what.startswith("Expected `"):
            return BadInput(f"{self.file}: {path + inner.rstrip('`')!r} must be {words}.")
        return BadInput(f"{self.file}: {path + inner.rstrip('`')!r} is wrong: {what}.")


@cache
def _kinds(record: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)


@cache
def _required(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record) if field.required)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
