"""The files that a piece of code or a patch, given on a command line, writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_LONGEST, _MOST, _TRIES = 200_000, 200, 20
_QUOTED_PATH = r"""r?["']([^"'\n]{1,300})["']"""
_PATCHED_FILE = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?)([^\t\n]+)", re.M
)
# Each begins with a few fixed letters: that makes looking for them fast.
_OPEN_CALL = re.compile(
    rf"""open\(\s*(?:{_QUOTED_PATH}|(\w+)\b(?!\.))?[^\n]{{0,120}}?,\s*(?:mode\s*=\s*)?"""
    r"""["'](?:[rbt]*[wax][bt]*\+?|r[bt]*\+[bt]*)["']"""
)
_WRITING_METHOD = re.compile(
    r"""\.(?:(?:write_text|write_bytes|unlink|rename|touch)\(|open\(\s*(?:mode\s*=\s*)?["'][wax])"""
)
_METHOD_OWNER = re.compile(rf"(?:Path\(\s*{_QUOTED_PATH}[^()\n]{{0,80}}\)|(?<!\w)(\w+))$")
_NODE_WRITE = re.compile(rf"File(?:Sync)?\(\s*(?:{_QUOTED_PATH}|(\w+))")
_FILE_CALL = re.compile(
    r"(?:shutil\.(?:copy\w*|move|rmtree)|os\.(?:remove|rename|replace|unlink|makedirs|mkdir))\("
)
_PATH_LITERAL = re.compile(rf"(?:(?:pathlib\.)?Path\(\s*)?{_QUOTED_PATH}")


def list_patched_files(text: str) -> list[str]:
    """The files that a patch names as changed."""
    names = (name.strip() for name in _PATCHED_FILE.findall(text))
    return [name for name in dict.fromkeys(names) if name != "/dev/null"]


def list_written_files(code: str) -> list[str]:
    """The files that code writes, `""` for one that it does not name."""
    code = code[:_LONGEST]
    writes = dict.fromkeys(_find_writes(code))
    return list(dict.fromkeys(name or _variable_path(variable, code) for name, variable in writes))


def _variable_path(variable: str, code: str) -> str:
    """The path that a variable is set to: `p = Path("a.py")`, `const f='a.js'`."""
    for sign in (" = ", "="):
        begin, start = variable + sign, -1
        for _ in range(_TRIES if variable else 0):
            start = code.find(begin, start + 1)
            if start < 0:
                break
            value = _PATH_LITERAL.match(code, start + len(begin))
            if value and not (start and (code[start - 1].isalnum() or code[start - 1] in "_.")):
                return value[1]
    return ""


def _find_writes(code: str) -> Iterator[tuple[str, str]]:
    """Each as its path or the variable that holds it."""
    for opened in islice(_OPEN_CALL.finditer(code), _MOST):
        start = opened.start()
        # `tarfile.open` and the like; what `Path(…).open` writes is found below.
        if code[start - 1 : start] not in (".", "_") or code[max(0, start - 7) : start].endswith(
            ("io.", "codecs.")
        ):
            yield opened[1] or "", opened[2] or ""
    for method in islice(_WRITING_METHOD.finditer(code), _MOST):
        start = method.start()
        owner = _METHOD_OWNER.search(code, max(0, start - 400), start)
        yield (owner[1] or "", owner[2] or "") if owner else ("", "")
    if "writeFile" in code or "appendFile" in code:
        yield from _NODE_WRITE.findall(code)
    if ("shutil." in code or "os." in code) and _FILE_CALL.search(code):
        yield "", ""
