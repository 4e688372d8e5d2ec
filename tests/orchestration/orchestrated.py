"""A small project with a plan of three tasks, the second of which goes wrong at first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy

from closeloop.judges.rubric import load_rubric
from closeloop.records.evaluation import Rubric, RubricQuestion
from small_project import git

CODE = load_rubric("code-change", Path())
REQUEST = "A calculator with add and double. Keep VERSION at 3 in settings.py."
MISSING = "double has no test: add one to test_double.py."
PLAN: dict[str, Any] = {
    "request": REQUEST,
    "plan": [
        {"id": "add", "prompt": "Write add(a, b) in add.py.", "scope": ["add.py"]},
        {"id": "double", "prompt": "Write double(a) in double.py.", "depends_on": ["add"]},
        {"id": "notes", "prompt": "Say in NOTES.md what there is."},
    ],
}
CONFIGURATION = """\
store = "{store}"
[sandbox]
kind = "none"
[limits]
seconds = 600
[models.worker]
provider = "scripted"
model = "worker.json"
input_price = 1.0
output_price = 10.0
[models.judge]
provider = "scripted"
model = "judge.json"
input_price = 1.0
output_price = 10.0
[variants.small]
model = "worker"
[judge]
models = ["judge"]
"""


def writes(*files: tuple[str, str]) -> list[dict[str, Any]]:
    """Turns that write files, and a report that names them."""
    names = ", ".join(path for path, _ in files)
    return [
        *({"do": {"write": {"path": path, "text": text}}} for path, text in files),
        {"do": {"finish": {"summary": f"Wrote {names}; nothing is open."}}},
    ]


ADD = writes(("add.py", "def add(a, b):\n    return a + b\n"))
DOUBLE = writes(("double.py", "from add import add\n\n\ndef double(a):\n    return add(a, a)\n"))
TESTED = writes(("test_double.py", "from double import double\n\nassert double(2) == 4\n"))
NOTES = writes(("NOTES.md", "There is add.\n"))
WORKER = [
    ("Your task: add\n", ADD),
    ("Your task: double\n.*Feedback on your try", TESTED),
    ("Your task: double\n", DOUBLE),
    ("Your task: notes\n", NOTES),
]
JUDGE = [
    # Of (found in what is judged, verdict, quote, reason) the first that fits answers.
    ("test_double.py", "yes", "def double(a)", "It is there."),
    ("BEGIN task [0-9a-f]+\ndouble\n", "no", "Write double(a)", MISSING),
    ("BEGIN task [0-9a-f]+\nadd\n", "yes", "def add(a, b)", "It is there."),
    ("BEGIN task [0-9a-f]+\nnotes\n", "yes", "There is add.", "It is there."),
]


def says(verdict: str, quote: str, reason: str, rubric: Rubric = CODE) -> str:
    answer = {"evidence": [quote], "reasoning": reason}

    def of(check: RubricQuestion) -> str:
        return "no" if verdict == "partly" and check.partly is None else verdict

    value = {
        "seal": r"\g<seal>",
        "answers": {check.id: {**answer, "verdict": of(check)} for check in rubric.checks},
        "summary": "Read.",
    }
    # The scripted model repeats the seal; JSON would have escaped it.
    return msgspec.json.encode(value).decode().replace(r"\\g", r"\g")


def script(name: str, dialogues: list[tuple[str, list[dict[str, Any]]]]) -> str:
    made = [{"prompt": prompt, "turns": turns} for prompt, turns in dialogues]
    return json.dumps({"name": name, "dialogues": made})


def judge_script(cases: list[tuple[str, str, str, str]], rubric: Rubric = CODE) -> str:
    when = r"with seal (?P<seal>[0-9a-f]{16}) as"
    return script(
        "judge",
        [
            (found, [{"when": when, "repeat": True, "say": says(verdict, quote, reason, rubric)}])
            for found, verdict, quote, reason in cases
        ],
    )


def build(folder: Path, store: str = ".closeloop/closeloop.db") -> Path:
    """Write the project into an empty folder and commit it."""
    folder.mkdir(exist_ok=True)
    files = {
        "settings.py": "VERSION = 3\n",
        ".gitignore": ".closeloop/\n__pycache__/\n*.json\ncloseloop.toml\n",
        "closeloop.toml": CONFIGURATION.replace("{store}", store),
        "worker.json": script("worker", WORKER),
        "judge.json": judge_script(JUDGE),
        "plan.json": json.dumps(PLAN),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Start")
    return folder


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CLOSELOOP_")}


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What plain SQL answers, on either engine."""
    address = url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(address if "://" in url else f"sqlite:///{url}")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sqlalchemy.text(query))]
    engine.dispose()
    return found
