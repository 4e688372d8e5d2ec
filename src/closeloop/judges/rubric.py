"""Rubrics: files that say what is asked, what each answer means, and what it takes to pass."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from math import isfinite
from pathlib import Path

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.evaluation import CRITERIA, Rubric
from closeloop.records.record import content_digest
from closeloop.records.record_reading import read_record

MAX_RUBRIC_BYTES = 256 << 10
_CHECK_ID = re.compile(r"[a-z][a-z0-9-]{0,40}")


def load_rubric(name: str, folder: Path) -> Rubric:
    """A built-in one by its name, or a file by its path from the folder."""
    built_in = files(__package__).joinpath("rubrics").iterdir()
    known = {one.name.removesuffix(".toml"): one for one in built_in}
    if name in known:
        return parse_rubric(known[name].read_bytes(), name)
    path = folder / name
    if not name.endswith(".toml"):
        raise BadInput(
            f"{unknown_name_error('rubric', name, known)} One may also name a .toml file."
        )
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_RUBRIC_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    return parse_rubric(content, str(path))


def parse_rubric(content: bytes, file: str) -> Rubric:
    """The rubric a file holds; BadInput for one that could not decide anything."""
    if len(content) > MAX_RUBRIC_BYTES:
        raise BadInput(f"{file} is too large to be a rubric.")
    try:
        written = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8 text: save it as UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{file} is not valid TOML: {error}.") from None
    rubric = read_record(written, Rubric, file)
    require_valid_rubric(rubric, file)
    return rubric


def require_valid_rubric(rubric: Rubric, file: str) -> None:
    """BadInput for checks, weights or thresholds that could not decide anything."""
    ids = [check.id for check in rubric.checks]
    for name in ids:
        if not _CHECK_ID.fullmatch(name):
            raise BadInput(f"{file}: the check {name!r} needs an id such as 'right-files'.")
        if ids.count(name) > 1:
            raise BadInput(f"{file}: two checks are named {name!r}: rename one.")
    for criterion in CRITERIA:
        if not any(one.criterion == criterion and not one.needs for one in rubric.checks):
            raise BadInput(f"{file}: no check without needs is for {criterion}: add one.")
    for name in rubric.weights:
        if name not in CRITERIA:
            raise unknown_name_error(f"criterion in the weights of {file}", name, CRITERIA)
    weights = [*rubric.weights.values(), *(check.weight for check in rubric.checks)]
    if not all(isfinite(weight) and weight > 0 for weight in weights):
        raise BadInput(f"{file}: every weight must be a number above 0.")
    if not (0 <= rubric.floor <= 1 and 0 <= rubric.pass_at <= 1):
        raise BadInput(f"{file}: 'pass_at' and 'floor' must lie between 0 and 1.")


def digest_rubric(rubric: Rubric) -> str:
    """Another digest is another rubric."""
    return content_digest(rubric)[:16]
