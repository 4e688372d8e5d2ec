"""Turn what people wrote into records; a fault names the file, the field and the nearest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from closeloop.records.errors import BadInput

T = TypeVar("T")

_TYPE_NAMES = {
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
    return _RecordReader(file, strict).convert_value(value, kind, "")  # type: ignore[no-any-return]


def parse_json(content: bytes, file: str) -> Any:
    """The plain data that JSON describes."""
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON: {error}.") from None


def unknown_field_error(file: str, field: str, known: Iterable[str]) -> BadInput:
    """`tasks/x.md: no field 'acceptence'. Did you mean 'acceptance'?`"""
    above, _, name = field.rpartition(".")
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    prefix = f"{above}." if above else ""
    hint = f"Did you mean {prefix + near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return BadInput(f"{file}: no field {field!r}. {hint}")


def read_changed_record(record: T, changes: Mapping[str, Any], file: str, path: str) -> T:
    """A record with some of its fields said anew; `path` is where in the file they stand."""
    changed = {**msgspec.to_builtins(record), **changes}
    return _RecordReader(file, strict=True).convert_value(changed, type(record), path)  # type: ignore[no-any-return]


class _RecordReader:
    def __init__(self, file: str, strict: bool) -> None:
        self.file = file
        self.strict = strict

    def convert_value(self, value: Any, kind: Any, path: str) -> Any:
        options = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        if value is None and NoneType in options:
            return None
        for option in options:
            if _is_record(option):
                return self._convert_struct(value, option, path)
            if get_origin(option) is tuple and _is_record(get_args(option)[0]):
                return self._convert_list(value, get_args(option)[0], path)
            if get_origin(option) is dict:
                return self._convert_dict(value, get_args(option)[1], path)
            if get_origin(option) is Literal and value not in get_args(option):
                raise self._invalid_choice_error(value, get_args(option), path)
        if isinstance(value, str) and tuple[str, ...] in options:
            value = [value]
        try:
            return msgspec.convert(value, kind, strict=self.strict)
        except msgspec.ValidationError as error:
            raise self._wrong_type_error(str(error), path) from None

    def _convert_struct(self, value: Any, kind: type[msgspec.Struct], path: str) -> Any:
        self._require_mapping(value, path)
        kinds = _field_types(kind)
        for name in value:
            if name not in kinds:
                raise unknown_field_error(self.file, _join_path(path, name), kinds)
        for name in _required_fields(kind):
            if name not in value:
                raise BadInput(f"{self.file}: {_join_path(path, name)!r} is missing.")
        return kind(
            **{
                name: self.convert_value(item, kinds[name], _join_path(path, name))
                for name, item in value.items()
            }
        )

    def _convert_dict(self, value: Any, kind: Any, path: str) -> dict[str, Any]:
        self._require_mapping(value, path)
        return {
            name: self.convert_value(item, kind, _join_path(path, name))
            for name, item in value.items()
        }

    def _convert_list(self, value: Any, kind: type[msgspec.Struct], path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{self.file}: {path!r} must be {_TYPE_NAMES['array']}.")
        return tuple(
            self._convert_struct(item, kind, f"{path}[{number}]")
            for number, item in enumerate(value)
        )

    def _require_mapping(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise BadInput(f"{self.file}: {path!r} must be {_TYPE_NAMES['object']}.")

    def _invalid_choice_error(self, value: Any, known: tuple[Any, ...], path: str) -> BadInput:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return BadInput(
            f"{self.file}: {path!r} cannot be {value!r}.{hint} Known: {', '.join(sorted(known))}."
        )

    def _wrong_type_error(self, error: str, path: str) -> BadInput:
        what, _, inner = error.partition(" - at `$")
        wanted = what.removeprefix("Expected ").split(",")[0].replace(" | null", "").strip("`")
        words = " or ".join(_TYPE_NAMES.get(word, word) for word in wanted.split(" | "))
        if what.startswith("Expected `"):
            return BadInput(f"{self.file}: {path + inner.rstrip('`')!r} must be {words}.")
        return BadInput(f"{self.file}: {path + inner.rstrip('`')!r} is wrong: {what}.")


@cache
def _field_types(record: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)


@cache
def _required_fields(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record) if field.required)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
