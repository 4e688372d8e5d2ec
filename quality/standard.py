"""Write down the names of every language's standard library, for the check of names.

    python quality/standard.py --python TYPESHED --go GO --java CT.SYM --rust RUST --javascript …

TYPESHED: its folder `stdlib`. GO, RUST: git folders of golang/go and rust-lang/rust. CT.SYM: of a
JDK. D.TS: folders of declarations, TypeScript's own and those of Node. What is written says for
each module (package) the names that occur in it, one module a line.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

TARGET = Path(__file__).resolve().parents[1] / "src/closeloop/changes/names/standard"
WORD = re.compile(r"[A-Za-z_$][\w$]+")
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
Pairs = Iterator[tuple[str, Iterable[str]]]


def python(folder: Path) -> Pairs:
    for path in folder.rglob("*.pyi"):
        parts = [*path.relative_to(folder).parent.parts, path.stem]
        text = re.sub(r"#[^\n]*", "", path.read_text())
        yield ".".join(parts).removesuffix(".__init__"), WORD.findall(text)


def go(folder: Path) -> Pairs:
    """Its own lists of what every release added, and of what is to come."""
    for name, text in blobs(folder, "api"):
        if name.endswith(".txt"):
            for line in text.splitlines():
                if found := re.match(r"pkg ([\w/.]+)[^,]*, (.*)", line):
                    yield found[1], re.findall(r"\b[A-Z]\w*", found[2])


def java(path: Path) -> Pairs:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".sig") and "/java" in name:
                package = "/".join(name.split("/")[2:-1]).replace("/", ".")
                names = [
                    word for text in constants(archive.read(name)) for word in WORD.findall(text)
                ]
                yield package, [Path(name).stem, *names]


def constants(code: bytes) -> Iterator[str]:
    """The texts in a class file's table of constants."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2}
    sizes |= {17: 4, 18: 4, 19: 2, 20: 2}
    at, left = 10, int.from_bytes(code[8:10], "big") - 1
    while left > 0:
        tag = code[at]
        if tag == 1:
            size = int.from_bytes(code[at + 1 : at + 3], "big")
            text = code[at + 3 : at + 3 + size].decode("utf-8", "replace")
            yield re.sub(r"L[\w/$]+;?", " ", text) if text[:1] in "(L[<" else text
            at += 3 + size
        else:
            at += 1 + sizes[tag]
        left -= 2 if tag in (5, 6) else 1


def rust(folder: Path) -> Pairs:
    for crate in ("core", "alloc", "std", "proc_macro", "test"):
        for name, text in blobs(folder, f"library/{crate}/src"):
            if name.endswith(".rs") and "/tests" not in name:
                yield crate, rust_names(COMMENTS.sub("", text))


def rust_names(text: str) -> Iterator[str]:
    """What is declared, and the names that macros are given to declare."""
    declared = r"\b(?:fn|struct|enum|trait|type|const|static|mod|union|macro_rules!|macro)\s+(\w+)"
    yield from re.findall(declared, text)
    yield from re.findall(r"\b(\w+)\s*(?::[^:]|=>|[({,])", text)


def javascript(folders: list[Path]) -> Pairs:
    """By module; what needs no import is under `*` too."""
    kinds = "var|let|const|function|class|abstract class|interface|type|namespace|enum"
    declared = re.compile(
        rf"^([ \t]*)(?:declare\s+|export\s+)*(?:{kinds})\s+([\w$]+)", re.MULTILINE
    )
    for folder in folders:
        for path in folder.rglob("*.d.ts"):
            module = path.name.removesuffix(".d.ts")
            text = COMMENTS.sub("", path.read_text())
            yield module, WORD.findall(text)
            if module.startswith("lib."):
                yield "*", [name for indent, name in declared.findall(text) if not indent]
            elif "declare global" in text or "globals" in path.parts[-2] + module:
                yield "*", [name for _, name in declared.findall(text)]


def blobs(folder: Path, inside: str) -> Iterator[tuple[str, str]]:
    command = ["git", "-C", str(folder), "archive", "HEAD", inside]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                yield member.name, file.read().decode("utf-8", "replace")


def write(language: str, pairs: Pairs) -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for module, found in pairs:
        names[module].update(found)
    lines = (f"{module} {' '.join(sorted(names[module]))}\n" for module in sorted(names))
    packed = zstandard.ZstdCompressor(level=19).compress("".join(lines).encode())
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / f"{language}.zst").write_bytes(packed)
    print(language, len(names), len(set().union(*names.values())), len(packed))  # noqa: T201


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for language in (python, go, java, rust):
        options.add_argument(f"--{language.__name__}", type=Path)
    options.add_argument("--javascript", type=Path, nargs="*")
    for language, place in vars(options.parse_args()).items():
        if place:
            write(language, globals()[language](place))


if __name__ == "__main__":
    main()
