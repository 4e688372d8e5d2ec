"""Read records of types that nobody has read before in several threads at once, or prepared."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

from closeloop.records.record import Record, resolve_record_types
from closeloop.store.record_bodies import compress_content, encode_record, unpack_record

FIELDS = "".join(f"    number{number}: int = 0\n" for number in range(6))


def make_kinds(name: str) -> list[type[Record]]:
    """Types of which each holds the next."""
    module = ModuleType(name)
    sys.modules[name] = module
    text = "".join(
        f"class C{at}(Record):\n    inner: C{at + 1} | None = None\n{FIELDS}\n" for at in range(40)
    )
    vars(module)["Record"] = Record
    code = f"from __future__ import annotations\n{text}class C40(Record):\n{FIELDS}\n"
    exec(code, vars(module))
    return [vars(module)[f"C{at}"] for at in range(41)]


def read_at_once(kinds: list[type[Record]]) -> None:
    nested = kinds[6](number0=1)
    for kind in reversed(kinds[:6]):
        nested = kind(inner=nested)
    body = compress_content(encode_record(nested))
    start = threading.Barrier(4)

    def read(kind: type[Record]) -> None:
        start.wait()
        unpack_record(body, kind)

    threads = [threading.Thread(target=read, args=(kinds[at],)) for at in (0, 5, 10, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


sys.setswitchinterval(1e-6)
for trial in range(60):
    trial_kinds = make_kinds(f"kinds{trial}")
    if "prepared" in sys.argv:
        resolve_record_types()
    read_at_once(trial_kinds)
