"""Measuring traces by all rules, beside decoding them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from closeloop import plugins
from closeloop.process.rulebook import build_rulebook
from closeloop.process.trace_measurement import (
    classify_ending,
    measure_lanes,
    process_score,
    tag_failure_modes,
)
from closeloop.process.trace_measurement import measure_reading as measure_trace
from closeloop.process.trace_reading import build_reading
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import Record
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Read,
    Thought,
    Trace,
)
from closeloop.traces.file_source import FileSource, find_reader
from harness import REFERENCE, Bench, peak_memory_bytes
from imports import LONG_MEGABYTES, make_recordings
from table import Row, build_row

LONG_EVENTS = 60_000
DEAREST_RULES = 5
FILES, CASES, SPELL = 7, 5, 200
"""Of the long trace: for a spell of turns the same files and tests come again, then others do."""


def measure_rules(bench: Bench) -> Iterator[Row]:
    folder = make_recordings(bench, "long", bench.size(LONG_MEGABYTES, 1))
    times = bench.repeat(lambda: bench.call("measure", "mixed", str(folder)))
    decoding = {"floor": times["decode"], "against": "msgspec decoding the traces"}
    name = f"{times['events'][0]:,.0f} events"
    yield build_row(f"all rules over {name}, CPU", times["rules"], "s", aim=2, **decoding)
    yield build_row("reading them before, CPU", times["read"], "s", aim=3, **decoding)
    yield build_row("summing up after, CPU", times["sums"], "s", aim=1, **decoding)
    rules = sorted((n for n in times if n.startswith("rule ")), key=lambda n: -sum(times[n]))
    for rule in rules[:DEAREST_RULES]:
        yield build_row(f"{rule}, CPU", times[rule], "s", **decoding)
    yield build_row(
        "measuring an event, CPU", times["event"], "µs", floor=times["reference"],
        against=REFERENCE, budget=5,
    )  # fmt: skip


def measure_long(bench: Bench) -> Iterator[Row]:
    events = bench.size(LONG_EVENTS, 200)
    whole = bench.repeat(
        lambda: {
            **bench.call("measure", "long", events),
            **{f"half {k}": v for k, v in bench.call("measure", "long", events // 2).items()},
        }
    )
    half = f"one of {events // 2:,}"
    yield build_row(
        f"a trace of {events:,} events, CPU", whole["cpu"], "s", floor=whole["half cpu"],
        against=half, aim=2.2,
    )  # fmt: skip
    if not bench.is_smoke:
        yield build_row(
            f"a trace of {events:,} events, memory", whole["memory"], "MB",
            floor=whole["half memory"], against=half, aim=2.2,
        )  # fmt: skip


def measure(bench: Bench) -> Iterator[Row]:
    yield from measure_rules(bench)
    yield from measure_long(bench)


def mixed(folder: str) -> dict[str, float]:
    """CPU seconds of decoding the traces as JSON, and of each part of what is said of them."""
    book = build_rulebook(plugins.load_plugins("detectors"), {})
    # What a process compiles once is not counted.
    measure_trace(build_reading(_long_trace(300)), book)
    decoder = msgspec.json.Decoder(Trace)
    spent: dict[str, float] = defaultdict(float)
    for encoded in [msgspec.json.encode(trace) for trace in _recorded(Path(folder))]:
        begun = time.process_time()
        decoded = decoder.decode(encoded)
        done = _since(begun, "decode", spent)
        reading = build_reading(decoded)
        done = _since(done, "read", spent)
        findings: list[Finding] = []
        unmeasured: list[Unmeasured] = []
        for chosen in book.chosen:
            said = chosen.detector.detect(reading, chosen.limits)
            unmeasured += [said] if isinstance(said, Unmeasured) else []
            findings += [] if isinstance(said, Unmeasured) else said
            done = _since(done, f"rule {chosen.detector.rule.name}", spent)
        whole, _ = measure_lanes(reading, findings, unmeasured)
        (
            process_score(reading, whole),
            tag_failure_modes(reading, findings),
            classify_ending(reading, findings),
        )
        _since(done, "sums", spent)
        spent["events"] += len(decoded.events)
    rules = sum(used for name, used in spent.items() if name.startswith("rule "))
    return {
        "rules": rules,
        **spent,
        "event": (rules + spent["read"] + spent["sums"]) / spent["events"],
    }


def _since(begun: float, what: str, spent: dict[str, float]) -> float:
    now = time.process_time()
    spent[what] += now - begun
    return now


def _recorded(folder: Path) -> Iterator[Trace]:
    for path in sorted(folder.rglob("*")):
        source = FileSource(path) if path.is_file() else None
        reader = find_reader(source) if source else None
        if source and reader:
            yield from (one.trace for one in reader.read(source) if one.trace.events)


def long(events: int) -> dict[str, float]:
    """CPU seconds, and the most memory, without what Python and the rules take themselves."""
    book = build_rulebook(plugins.load_plugins("detectors"), {})
    measure_trace(build_reading(_long_trace(100)), book)
    before = peak_memory_bytes()
    trace = _long_trace(events)
    begun = time.process_time()
    found = measure_trace(build_reading(trace), book)
    used = time.process_time() - begun
    return {"cpu": used, "memory": peak_memory_bytes() - before, "findings": len(found.findings)}


class _Told(Record):
    """A trace while it is told."""

    events: list[AnyEvent]
    lanes: list[Lane]

    def add(self, kind: type[AnyEvent], lane: str = "root", **given: Any) -> None:
        self.events.append(kind(number=len(self.events) + 1, lane=lane, **given))


def _long_trace(events: int) -> Trace:
    told = _Told(events=[], lanes=[Lane(id="root")])
    asked = "Make the carts add up. Do not touch db/schema.sql, and keep the signatures."
    told.add(Message, role="user", text=asked, intent="request")
    turn = 0
    while len(told.events) < events:
        turn += 1
        _work(told, turn)
        if turn % 5 == 0:
            said = f"total_{turn} is fixed and all tests pass. Next comes part {turn}."
            told.add(Message, role="agent", text=said)
        if turn % 40 == 0:
            told.add(Message, role="user", text=f"No, do not change part{turn}, fix total_{turn}.")
        if turn % 25 == 0:
            _hand_on(told, turn)
    told.add(Message, role="agent", text="Done, all tests pass.", intent="claim")
    return Trace(
        reader="bench", reader_version=1, lanes=tuple(told.lanes), events=tuple(told.events)
    )


def _work(told: _Told, turn: int) -> None:
    """A look, a thought, an edit that may fail, a check that mostly does, a search."""
    part = turn // SPELL * FILES + turn % FILES
    path, test = f"src/part{part}.py", f"tests/test_part{part}.py"
    shown = f"def total_{part}(cart):\n    return sum(cart) + {turn}\n" * 10
    told.add(Read, path=path, text=shown, ok=True)
    told.add(Thought, text="The total is off by one, says the test.")
    lost = turn % 13 == 0
    before, after = f"return sum(cart) + {turn}", f"return sum(cart) - {turn}"
    why = "String not found" if lost else None
    told.add(Edit, path=path, before=before, after=after, ok=not lost, error=why)
    if turn % 11 == 0:
        before, after = f"assert total({turn}) == 1", f"assert total({turn}) == {turn}"
        told.add(Edit, path=test, before=before, after=after, ok=True)
    case, error = f"test_case{turn % CASES}", f"AssertionError: assert {turn} == 3"
    failed = f"E   {error}\nFAILED {test}::{case} - {error}\n1 failed, 3 passed in 0.{turn % 90}s"
    fails = turn % 3 > 0
    told.add(
        Command,
        command=f"cd /work && pytest -q {test} -k {case}",
        exit_code=int(fails),
        output=failed if fails else "4 passed in 0.1s",
    )
    search = f'grep -rn "total_{part}" src | head -n {turn % 40}'
    told.add(Command, command=search, exit_code=0, output=f"{path}:1:def total\n" * 20)


def _hand_on(told: _Told, turn: int) -> None:
    path, test, child = f"src/part{turn}.py", f"tests/test_part{turn}.py", f"child{turn}"
    told.lanes.append(Lane(id=child, parent="root"))
    brief = f"Fix `total_{turn}` in {path}. Only change {path}, run pytest {test} and report back."
    report = f"Fixed {path}. 3 tests pass, 1 test still fails: test_case{turn}."
    told.add(Handoff, brief=brief, child=child, report=report, ok=True)
    told.add(Read, child, path=path, text="x = 1\n" * 20, ok=True)
    told.add(Edit, child, path=path, before="x = 1", after=f"x = {turn}", ok=True)
    told.add(Command, child, command=f"pytest {test}", exit_code=0, output="4 passed in 0.1s")
    told.add(Message, child, role="agent", text="Done. All tests pass.")
