"""Read tasks that others run in containers, Harbor's and terminal-bench's, as tasks of ours.

Their tests know absolute places: `/app`, `/tests`, `/logs`. Grading copies the tests somewhere and
writes the true places into the copy. What their images install is not here; such a task cannot be
proved, and says so, until its `setup` does it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.task import Acceptance, Task
from closeloop.tasks.digests import with_digests
from closeloop.tasks.exchange.harbor import RECORD
from closeloop.tasks.exchange.swebench import task_id
from closeloop.tasks.exchange.trees import commit_all, patch_adding, unpack
from closeloop.tasks.front import read_text

MOST_FILES = 2000
LARGEST_FILE = 32 << 20
HIDDEN = ".harbor"
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w{1,40})['\"]?[^\n]{0,200}\n")
_GRADER = """\
#!/bin/bash
# Runs the tests of a container's task here: with the places of this machine in their place.
root=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/logs/verifier"
cp -R "$root/.harbor/tests" "$place/tests"
grep -rlIE '/(app|tests|logs)' "$place/tests" | while IFS= read -r file; do
  sed -i -E "s#(^|[^A-Za-z0-9_.}])/(tests|logs)(/|[^A-Za-z0-9_]|\\$)#\\1$place/\\2\\3#g
s#(^|[^A-Za-z0-9_.}])APP(/|[^A-Za-z0-9_]|\\$)#\\1$root\\2#g" "$file"
done
export TEST_DIR="$place/tests"
bash "$place/tests/SCRIPT"
code=$?
reward="$place/logs/verifier/reward.txt"
if [ -s "$reward" ]; then awk '{ exit !($1 >= 1) }' "$reward"; else exit "$code"; fi
"""


def is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read_container(folder: Path, repos: Path) -> Task:
    """One task's folder; its files become a repository of their own in `repos`."""
    draft = repos / f".{task_id(folder.name)}.part"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        return _read(folder, draft)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{folder} cannot be read as a task: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _read(folder: Path, draft: Path) -> Task:
    harbor = (folder / "task.toml").is_file()
    told = _harbor(folder) if harbor else _terminal_bench(folder)
    environment = folder / "environment" if harbor else folder
    own = folder / "tests" / RECORD
    if own.is_file():
        unpack(environment / "repo.tar.gz", draft)
    else:
        _copy(environment, draft, told["root"])
    base = commit_all(draft)
    task = _own(own, folder) if own.is_file() else _theirs(folder, draft, told)
    # Named by its content: a task that was imported earlier keeps what it started from.
    repo = draft.with_name(f"{task_id(folder.name)}-{base[:12]}")
    made = with_digests(replace(task, repo=str(repo.resolve()), base=base))
    if not repo.exists():
        draft.rename(repo)
    return made


def _harbor(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.toml")
    try:
        config = tomllib.loads(read_text(folder / "task.toml", name))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not valid TOML: {error}.") from error
    if config.get("steps"):
        raise BadInput(f"{name} has several steps, and a task here is one request.")
    verifier = config.get("verifier")
    package = config.get("task")
    return {
        "prompt": read_text(folder / "instruction.md", str(folder / "instruction.md")).strip(),
        "seconds": verifier.get("timeout_sec") if isinstance(verifier, dict) else None,
        "tags": package.get("keywords") if isinstance(package, dict) else None,
        "script": "test.sh",
        "solution": folder / "solution",
        "root": _root(folder / "environment" / "Dockerfile"),
        "origin": "harbor",
    }


def _terminal_bench(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.yaml")
    try:
        config = yaml.safe_load(read_text(folder / "task.yaml", name))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not valid YAML.") from error
    if not isinstance(config, dict) or not isinstance(config.get("instruction"), str):
        raise BadInput(f"{name}: 'instruction' is missing.")
    return {
        "prompt": config["instruction"].strip(),
        "seconds": config.get("max_test_timeout_sec"),
        "tags": config.get("tags"),
        "script": "run-tests.sh",
        "solution": folder,
        "root": _root(folder / "Dockerfile"),
        "origin": "terminal-bench",
    }


def _theirs(folder: Path, repo: Path, told: dict[str, Any]) -> Task:
    place = folder / "tests"
    tests = {name: (place / name).read_bytes() for name in _files(place)}
    if told["script"] not in tests:
        script = folder / told["script"]
        if not script.is_file():
            raise BadInput(f"{folder} has no {told['script']}: nothing would grade it.")
        tests[told["script"]] = script.read_bytes()
    grader = _GRADER.replace("SCRIPT", told["script"]).replace("APP", told["root"])
    files = {f"{HIDDEN}/tests/{name}": content for name, content in tests.items()}
    files[f"{HIDDEN}/grade.sh"] = grader.encode()
    seconds = told["seconds"]
    timeout = float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e6 else 600.0
    tags = told["tags"] if isinstance(told["tags"], list) else []
    return Task(
        id=task_id(folder.name),
        prompt=told["prompt"],
        acceptance=Acceptance(
            commands=(f"bash {HIDDEN}/grade.sh",),
            patch=patch_adding(repo, files),
            timeout=timeout,
        ),
        reference=_reference(told["solution"]),
        tags=tuple(tag for tag in tags if isinstance(tag, str)),
        origin=f"{told['origin']}:{folder.name}",
    )


def _own(record: Path, folder: Path) -> Task:
    """A task that closeloop wrote, as it was."""
    try:
        task = msgspec.json.decode(record.read_bytes(), type=Task)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{record} is no task: {error}.") from error
    patch = folder / "solution" / "reference.patch"
    reference = read_text(patch, str(patch), LARGEST_FILE) if patch.is_file() else None
    return replace(task, id=task_id(task.id), reference=reference)


def _reference(folder: Path) -> str | None:
    """The fix as a patch, where there is one: in a file, or within the script that applies it."""
    for path in sorted([*folder.glob("*.patch"), *folder.glob("*.diff")]):
        return read_text(path, str(path), LARGEST_FILE)
    for path in (folder / "solve.sh", folder / "solution.sh"):
        if path.is_file():
            return _patch_within(read_text(path, str(path), LARGEST_FILE))
    return None


def _patch_within(script: str) -> str | None:
    for start in _HEREDOC.finditer(script):
        body, closed, _ = script[start.end() :].partition(f"\n{start[1]}\n")
        if closed and "--- " in body and "+++ " in body:
            try:
                return f"{body}\n" if parse(f"{body}\n").files else None
            except BadInput:
                continue
    return None


def _root(dockerfile: Path) -> str:
    """Where the work is done: the last WORKDIR, else where these tasks usually have it."""
    root = "/app"
    for word, rest in _instructions(dockerfile):
        if word == "WORKDIR" and rest.startswith("/") and len(rest) > 1:
            root = str(PurePosixPath(rest))
    return root


def _copy(environment: Path, target: Path, root: str) -> None:
    """What the image copies from the task's folder into the place of the work."""
    target.mkdir(parents=True, exist_ok=True)
    here = environment.resolve()
    for word, rest in _instructions(environment / "Dockerfile"):
        if word not in ("COPY", "ADD"):
            continue
        *sources, place = _words(rest) or [""]
        below = PurePosixPath(root, place)
        if not below.is_relative_to(root) or ".." in below.parts:
            continue
        into = target / below.relative_to(root)
        many = place.endswith("/") or place in (".", "./") or len(sources) > 1 or into.is_dir()
        for source in sources:
            path = (environment / source).resolve()
            if not path.is_relative_to(here) or "://" in source:
                continue
            found = _files(path) if path.is_dir() else [path.name if many else ""]
            for name in found:
                origin = path / name if path.is_dir() else path
                goal = into / name if name else into
                # Whoever writes git's own files decides what git runs.
                private = ".git" in goal.relative_to(target).parts
                if origin.is_file() and not origin.is_symlink() and not private:
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(origin, goal)


def _words(rest: str) -> list[str]:
    """What COPY copies, and where to: as words, or as a list of texts."""
    listed = re.match(r"(?:--\S+\s+)*(\[.*)", rest)
    if listed:
        return msgspec.json.decode(listed[1], type=list[str])
    return [part for part in shlex.split(rest) if not part.startswith("--")]


def _instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    if not dockerfile.is_file():
        return
    text = read_text(dockerfile, str(dockerfile)).replace("\\\n", " ")
    for line in text.split("\n"):
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def _files(folder: Path) -> Iterator[str]:
    """The names of the files below a folder; links are not followed."""
    found = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file() or ".git" in path.relative_to(folder).parts:
            continue
        found += 1
        if found > MOST_FILES or path.stat().st_size > LARGEST_FILE:
            raise BadInput(f"{folder} has too many files, or too large ones, for a task.")
        yield str(path.relative_to(folder))
