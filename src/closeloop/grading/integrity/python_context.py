"""What a Python test needs around it: its name, its file, its neighbours.

A copy under another name may come out otherwise for such a test through no fault of the code under
test. Then it is believed only if the reference agrees.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator, Sequence

TestFunction = ast.FunctionDef | ast.AsyncFunctionDef

_READS_ITS_NAME = re.compile(
    r"request\.(?:node|function|module|path|fspath)\b|_testMethodName|\bself\.id\(\)"
    r"|PYTEST_CURRENT_TEST|\b\w*snapshot\w*|\b\w+_regression\b|approvaltests|\bverify\w*\("
    r"|__file__\)?(?:\.\w+\(\))*\.(?:stem|name|with_\w+)\b|basename\(__file__|open\(__file__"
    r"|__file__\)?\.(?:read_|open)|\bgetsource|\blinecache\b|lineno\b|currentframe|_getframe"
    r"|inspect\.stack|co_name|\.r?glob\(|\.iterdir\(|\blistdir\(|\bscandir\(|os\.walk\("
)
"""Ways to see a test's name, the text of its file or what lies beside it."""
_CLASS_ENDS = re.compile(r"(?:Tests?|TestCase|Specs?|Suite|Should)$")
_CLASS_STARTS = re.compile(r"(?:Describe|When|Should|Spec|It|Check)(?=[A-Z_])")


def find_class(body: list[ast.stmt], names: Sequence[str]) -> ast.ClassDef | None:
    """The class that a chain of names leads to; the last of each name counts."""
    found: ast.ClassDef | None = None
    for wanted in names:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == wanted]
        if not inner:
            return None
        found, body = inner[-1], inner[-1].body
    return found


def find_function(body: list[ast.stmt], name: str) -> TestFunction | None:
    """The last function of that name."""
    found = [
        node
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    return found[-1] if found else None


def reads_test_names(text: str) -> bool:
    """Whether code may see the name of a test, its file or what lies beside it."""
    return _READS_ITS_NAME.search(text) is not None


def names_itself(function: TestFunction, classes: Iterable[str], path: str) -> bool:
    """Whether a test has its own name, its class's or its file's in a string."""
    stem = path.rpartition("/")[2].removesuffix(".py")
    own = (stem, function.name, *classes)
    strings = (
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return any(name in string for string in strings for name in own)


def named_elsewhere(tree: ast.Module) -> set[str]:
    """Names that something in a file uses: a function of that name cannot be renamed alone."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names_without_functions(tree: ast.Module) -> set[str]:
    """Names that a module assigns or imports: `test_total = make_test(3)`."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    return imported | set(_bound_names(tree.body))


def first_place(tree: ast.Module) -> int:
    """Behind the docstring and what must come first."""
    ahead = [
        at
        for at, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    return max([ast.get_docstring(tree) is not None, *(at + 1 for at in ahead)])


def new_class_name(name: str, rng: random.Random) -> str:
    """A random name that is found as the old one was, by what it starts or ends with."""
    word = f"{rng.getrandbits(48):012x}"
    if name.startswith("Test"):
        return f"Test{word}"
    if end := _CLASS_ENDS.search(name):
        return f"C{word}{end[0]}"
    start = _CLASS_STARTS.match(name)
    return f"{start[0] if start else name}{word}"


def new_test_name(name: str, rng: random.Random) -> str:
    """A random name that is found as the old one was: most projects want `test` in front."""
    word = f"{rng.getrandbits(48):012x}"
    if name.startswith("test"):
        return f"test_{word}"
    return f"t{word}_test" if name.endswith("_test") else f"{name}_{word}"


def new_test_names(names: Iterable[str], rng: random.Random) -> dict[str, str]:
    """New names that sort as the old ones do: unittest runs tests in that order."""
    old = sorted(names)
    plain = [name for name in old if name.startswith("test")]
    renamed = dict(zip(plain, sorted(new_test_name(name, rng) for name in plain), strict=True))
    return renamed | {name: new_test_name(name, rng) for name in old if name not in renamed}


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that are assigned to in a module or a class."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))
