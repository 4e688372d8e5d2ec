"""Python modules out of a seed: like what people write in size and shape, and the same anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator

NOUNS = (  # noqa: SIM905
    "account address batch budget bucket cart channel client column contract counter customer "
    "deadline discount document entry event filter folder header index invoice item journal "
    "label ledger limit line margin message order owner package parcel payment period price "
    "product quota rate receipt record region report request result row rule schedule section "
    "segment session shipment signal source state step stock summary table target tax ticket "
    "token total trace unit user value vendor version voucher warehouse weight window worker "
    "zone"
).split()
VERBS = (  # noqa: SIM905
    "add apply assign attach build cancel check collect compare compute copy count create "
    "decode drop encode expand fetch fill find flush format group join limit load lock merge "
    "move parse pick print publish read reduce refresh remove rename render reset resolve "
    "round save scan select send sort split store sum trim update validate verify wrap write"
).split()
LIBRARIES = ("collections", "functools", "itertools", "json", "math", "os", "re", "time")


class SourceWriter:
    """Writes one module after the other from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def write_module(self, imported: str, *, is_test: bool = False) -> str:
        """About ten kilobytes: imports, constants, functions and classes; or tests."""
        parts = [f'"""{self._sentence()}"""', f"import {imported}"]
        parts += [f"import {name}" for name in sorted(self._random.sample(LIBRARIES, 3))]
        parts += [f"{self._noun().upper()}_{self._noun().upper()} = {self._value()}" for _ in "123"]
        definitions = [
            self._function("", prefix="test_" if is_test else "")
            if is_test or self._random.random() < 0.6
            else self._class()
            for _ in range(self._random.randrange(8, 17))
        ]
        return "\n".join(parts) + "\n\n\n" + "\n\n".join(definitions)

    def _class(self) -> str:
        name = f"{self._noun().title()}{self._noun().title()}"
        fields = self._random.sample(NOUNS, 3)
        lines = [f"class {name}:", f'    """{self._sentence()}"""', ""]
        lines += [f"    def __init__(self, {', '.join(fields)}=None):"]
        lines += [f"        self.{field} = {field}" for field in fields]
        methods = [self._function("    ", own="self") for _ in range(self._random.randrange(2, 5))]
        return "\n".join(lines) + "\n\n" + "\n".join(methods)

    def _function(self, indent: str, own: str = "", prefix: str = "") -> str:
        names = self._random.sample(NOUNS, 4)
        given = ", ".join(filter(None, [own, *([] if prefix else names[:2])]))
        name = f"{prefix}{self._random.choice(VERBS)}_{self._noun()}_{self._noun()}"
        lines = [f"def {name}({given}):", f'    """{self._sentence()}"""']
        lines += [f"    {names[0]}, {names[1]} = {self._value()}, {self._value()}"] * bool(prefix)
        for _ in range(self._random.randrange(2, 7)):
            lines += [f"    {line}" for line in self._statement(names, 0)]
        lines.append(f"    {'assert' if prefix else 'return'} {self._expression(names, 2)}")
        return "".join(f"{indent}{line}\n" for line in lines)

    def _statement(self, names: list[str], depth: int) -> Iterator[str]:
        kind = self._random.randrange(8 if depth < 2 else 4)
        name, value = self._random.choice(names), self._expression(names, 2)
        if kind < 3:
            yield f"{name} = {value}"
        elif kind == 3:
            yield f"{self._random.choice(names)} = [{name} for {name} in {value}]"
        elif kind == 4:
            yield f"# {self._sentence()}"
            yield f"if {value}:"
            yield from self._block(names, depth)
        elif kind == 5:
            yield f"for {name} in {value}:"
            yield from self._block(names, depth)
        elif kind == 6:
            yield "try:"
            yield from self._block(names, depth)
            yield "except ValueError as error:"
            yield f'    raise RuntimeError(f"{self._sentence()} {{{name}}}") from error'
        else:
            yield f"while {name} < {self._random.randrange(1000)}:"
            yield f"    {name} += {self._random.randrange(1, 10)}"

    def _block(self, names: list[str], depth: int) -> Iterator[str]:
        for _ in range(self._random.randrange(1, 4)):
            yield from (f"    {line}" for line in self._statement(names, depth + 1))

    def _expression(self, names: list[str], depth: int) -> str:
        kind = self._random.randrange(7) if depth else 0
        if kind < 2:
            return self._random.choice([*names, self._value()])
        left, right = (self._expression(names, depth - 1) for _ in "12")
        if kind < 4:
            return f"{left} {self._random.choice(('+', '-', '*', '<', '==', 'and', 'or'))} {right}"
        if kind == 4:
            return f"{self._random.choice(VERBS)}_{self._noun()}({left}, {self._noun()}={right})"
        if kind == 5:
            return f"{self._random.choice(names)}.{self._random.choice(VERBS)}({left})"
        return f"{{{self._noun()!r}: {left}, {self._noun()!r}: ({right})}}"

    def _value(self) -> str:
        kind = self._random.randrange(3)
        if kind == 0:
            return str(self._random.randrange(10_000))
        return repr(self._noun()) if kind == 1 else repr(self._sentence())

    def _sentence(self) -> str:
        words = [self._random.choice(VERBS).title(), "the", self._noun(), self._noun()]
        return " ".join([*words, self._random.choice(("of", "for", "from")), self._noun()]) + "."

    def _noun(self) -> str:
        return self._random.choice(NOUNS)
