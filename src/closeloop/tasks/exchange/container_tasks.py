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

from closeloop.records.errors import BadInput
from closeloop.records.task import Acceptance, Task
from closeloop.tasks.exchange.harbor_export import (
    RECORD_FILE,
    commit_folder,
    patch_adding_files,
    unpack_archive,
)
from closeloop.tasks.exchange.swebench import normalise_task_id
from closeloop.tasks.task_files import read_task_text, with_digests
from closeloop.text.patches import parse_patch

MAX_FILES = 2000
MAX_FILE_BYTES = 32 << 20
HIDDEN_FOLDER = ".harbor"
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w{1,40})['\"]?[^\n]{0,200}\n")
_GRADER_SCRIPT = """\
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


def is_container_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read_container_task(folder: Path, repos: Path) -> Task:
    """One task's folder; its files become a repository of their own in `repos`."""
    draft = repos / f".{normalise_task_id(folder.name)}.part"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        return _import_task(folder, draft)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{folder} cannot be read as a task: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _import_task(folder: Path, draft: Path) -> Task:
    harbor = (folder / "task.toml").is_file()
    config = _read_harbor_config(folder) if harbor else _read_terminal_bench_config(folder)
    environment = folder / "environment" if harbor else folder
    record_path = folder / "tests" / RECORD_FILE
    if record_path.is_file():
        unpack_archive(environment / "repo.tar.gz", draft)
    else:
        _copy_environment(environment, draft, config["root"])
    base = commit_folder(draft)
    task = (
        _restore_own_task(record_path, folder)
        if record_path.is_file()
        else _build_task(folder, draft, config)
    )
    # Named by its content: a task that was imported earlier keeps what it started from.
    repo = draft.with_name(f"{normalise_task_id(folder.name)}-{base[:12]}")
    imported_task = with_digests(replace(task, repo=str(repo.resolve()), base=base))
    if not repo.exists():
        draft.rename(repo)
    return imported_task


def _read_harbor_config(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.toml")
    try:
        config = tomllib.loads(read_task_text(folder / "task.toml", name))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not valid TOML: {error}.") from error
    if config.get("steps"):
        raise BadInput(f"{name} has several steps, and a task here is one request.")
    verifier = config.get("verifier")
    package = config.get("task")
    return {
        "prompt": read_task_text(folder / "instruction.md", str(folder / "instruction.md")).strip(),
        "seconds": verifier.get("timeout_sec") if isinstance(verifier, dict) else None,
        "tags": package.get("keywords") if isinstance(package, dict) else None,
        "script": "test.sh",
        "solution": folder / "solution",
        "root": _find_workdir(folder / "environment" / "Dockerfile"),
        "origin": "harbor",
    }


def _read_terminal_bench_config(folder: Path) -> dict[str, Any]:
    name = str(folder / "task.yaml")
    try:
        config = yaml.safe_load(read_task_text(folder / "task.yaml", name))
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
        "root": _find_workdir(folder / "Dockerfile"),
        "origin": "terminal-bench",
    }


def _build_task(folder: Path, repo: Path, told: dict[str, Any]) -> Task:
    place = folder / "tests"
    tests = {name: (place / name).read_bytes() for name in _list_files(place)}
    if told["script"] not in tests:
        script = folder / told["script"]
        if not script.is_file():
            raise BadInput(f"{folder} has no {told['script']}: nothing would grade it.")
        tests[told["script"]] = script.read_bytes()
    grader = _GRADER_SCRIPT.replace("SCRIPT", told["script"]).replace("APP", told["root"])
    files = {f"{HIDDEN_FOLDER}/tests/{name}": content for name, content in tests.items()}
    files[f"{HIDDEN_FOLDER}/grade.sh"] = grader.encode()
    seconds = told["seconds"]
    timeout = float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e6 else 600.0
    tags = told["tags"] if isinstance(told["tags"], list) else []
    return Task(
        id=normalise_task_id(folder.name),
        prompt=told["prompt"],
        acceptance=Acceptance(
            commands=(f"bash {HIDDEN_FOLDER}/grade.sh",),
            patch=patch_adding_files(repo, files),
            timeout=timeout,
        ),
        reference=_find_reference(told["solution"]),
        tags=tuple(tag for tag in tags if isinstance(tag, str)),
        origin=f"{told['origin']}:{folder.name}",
    )


def _restore_own_task(record: Path, folder: Path) -> Task:
    """A task that closeloop wrote, as it was."""
    try:
        task = msgspec.json.decode(record.read_bytes(), type=Task)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{record} is no task: {error}.") from error
    patch = folder / "solution" / "reference.patch"
    reference = read_task_text(patch, str(patch), MAX_FILE_BYTES) if patch.is_file() else None
    return replace(task, id=normalise_task_id(task.id), reference=reference)


def _find_reference(folder: Path) -> str | None:
    """The fix as a patch, where there is one: in a file, or within the script that applies it."""
    for path in sorted([*folder.glob("*.patch"), *folder.glob("*.diff")]):
        return read_task_text(path, str(path), MAX_FILE_BYTES)
    for path in (folder / "solve.sh", folder / "solution.sh"):
        if path.is_file():
            return _patch_in_script(read_task_text(path, str(path), MAX_FILE_BYTES))
    return None


def _patch_in_script(script: str) -> str | None:
    for start in _HEREDOC.finditer(script):
        body, closed, _ = script[start.end() :].partition(f"\n{start[1]}\n")
        if closed and "--- " in body and "+++ " in body:
            try:
                return f"{body}\n" if parse_patch(f"{body}\n").files else None
            except BadInput:
                continue
    return None


def _find_workdir(dockerfile: Path) -> str:
    """Where the work is done: the last WORKDIR, else where these tasks usually have it."""
    root = "/app"
    for word, rest in _docker_instructions(dockerfile):
        if word == "WORKDIR" and rest.startswith("/") and len(rest) > 1:
            root = str(PurePosixPath(rest))
    return root


def _copy_environment(environment: Path, target: Path, root: str) -> None:
    """What the image copies from the task's folder into the place of the work."""
    target.mkdir(parents=True, exist_ok=True)
    here = environment.resolve()
    for word, rest in _docker_instructions(environment / "Dockerfile"):
        if word not in ("COPY", "ADD"):
            continue
        *sources, place = _parse_copy_arguments(rest) or [""]
        below = PurePosixPath(root, place)
        if not below.is_relative_to(root) or ".." in below.parts:
            continue
        into = target / below.relative_to(root)
        into_folder = (
            place.endswith("/") or place in (".", "./") or len(sources) > 1 or into.is_dir()
        )
        for source in sources:
            path = (environment / source).resolve()
            if not path.is_relative_to(here) or "://" in source:
                continue
            names = _list_files(path) if path.is_dir() else [path.name if into_folder else ""]
            for name in names:
                origin = path / name if path.is_dir() else path
                goal = into / name if name else into
                # Whoever writes git's own files decides what git runs.
                private = ".git" in goal.relative_to(target).parts
                if origin.is_file() and not origin.is_symlink() and not private:
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(origin, goal)


def _parse_copy_arguments(rest: str) -> list[str]:
    """What COPY copies, and where to: as words, or as a list of texts."""
    listed = re.match(r"(?:--\S+\s+)*(\[.*)", rest)
    if listed:
        return msgspec.json.decode(listed[1], type=list[str])
    return [part for part in shlex.split(rest) if not part.startswith("--")]


def _docker_instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    if not dockerfile.is_file():
        return
    text = read_task_text(dockerfile, str(dockerfile)).replace("\\\n", " ")
    for line in text.split("\n"):
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def _list_files(folder: Path) -> Iterator[str]:
    """The names of the files below a folder; links are not followed."""
    file_count = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file() or ".git" in path.relative_to(folder).parts:
            continue
        file_count += 1
        if file_count > MAX_FILES or path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"{folder} has too many files, or too large ones, for a task.")
        yield str(path.relative_to(folder))
