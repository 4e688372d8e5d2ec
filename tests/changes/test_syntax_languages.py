"""What is read of source files, in each language; other tools' counts are written down here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.changes.syntax import MAX_SOURCE_BYTES, extract_words, outline_source, parse_module
from closeloop.records.change import Language, SourceModule
from patience import takes

LANGUAGES: tuple[Language, ...] = (
    "python",
    "javascript",
    "typescript",
    "tsx",
    "go",
    "java",
    "rust",
)

SOURCES: dict[Language, str] = {
    "python": """
from shop.text import slug as key
import os

class Cart(Base):
    def total(self, items, *, tax=0):
        for item in items:
            if item and tax:
                self.sum += item.price(tax=tax)
        return self.sum
""",
    "javascript": """
import { slug as key } from './text'
export class Cart extends Base {
  total(items, tax = 0) {
    for (const item of items) {
      if (item && tax) this.sum += item.price(tax)
    }
    return this.sum
  }
}
""",
    "go": """
package shop
import key "example.org/text"
type Cart struct { Sum int }
func (c *Cart) Total(items []int, tax int) int {
	for _, item := range items {
		if item > 0 && tax > 0 {
			c.Sum += key.Price(item, tax)
		}
	}
	return c.Sum
}
""",
    "java": """
import org.example.Text;
public class Cart extends Base {
  public int total(List<Item> items, int tax) {
    for (Item item : items) {
      if (item != null && tax > 0) { this.sum += item.price(tax); }
    }
    return this.sum;
  }
}
""",
    "rust": """
use crate::text::slug as key;
pub struct Cart { sum: u32 }
impl Cart {
    pub fn total(&mut self, items: &[u32], tax: u32) -> u32 {
        for item in items {
            if *item > 0 && tax > 0 { self.sum += key(item, tax); }
        }
        self.sum
    }
}
""",
}
SOURCES["typescript"] = SOURCES["tsx"] = SOURCES["javascript"].replace("tax = 0", "tax: number = 0")


def read(language: Language) -> SourceModule:
    return parse_module(language, SOURCES[language].encode())


@pytest.mark.parametrize("language", LANGUAGES)
def test_functions_types_and_imports_are_read_in_every_language(language: Language) -> None:
    module = read(language)

    (total,) = module.functions
    (cart,) = module.types
    (first, *_) = module.imports
    assert total.qualified.lower() == "cart.total"
    assert cart.name == "Cart"
    assert cart.methods == 1
    assert total.public
    assert len([one for one in total.parameters if "self" not in one and one != "*"]) == 2
    assert first.line > 1
    assert not module.broken_lines
    # A loop, a branch and one more way for its second condition.
    assert total.complexity == 4
    # The loop, the branch inside it (twice) and its operator.
    assert total.cognitive == 4


@pytest.mark.parametrize("language", LANGUAGES)
def test_calls_know_what_they_are_looked_up_on(language: Language) -> None:
    calls = {one.text.lower(): one.receiver for one in read(language).names if one.kind == "call"}

    expected = {"go": ("price", "key"), "rust": ("key", None)}.get(language, ("price", "item"))
    assert calls[expected[0]] == expected[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_outline_has_definitions_with_their_lines(language: Language) -> None:
    content = SOURCES[language].encode()
    outline = outline_source(language, content)

    lines = content.split(b"\n")
    names = outline.defined.split(b"\n")
    places = memoryview(outline.defined_lines).cast("I")
    assert {b"cart", b"total"} <= {name.lower() for name in names}
    assert all(name in lines[line - 1] for name, line in zip(names, places, strict=True))
    assert b"\n" not in outline.names.strip(b"\n") or b"items" in outline.names.split(b"\n")
    assert outline.imports


def test_a_keyword_knows_what_is_called_with_it() -> None:
    (keyword,) = [one for one in read("python").names if one.kind == "keyword"]

    assert (keyword.text, keyword.receiver) == ("tax", "item.price")


KNOWN = """
def plain(a):
    return a

def chosen(a, b):
    if a and b or not a:
        return 1
    elif b:
        return 2
    return [x for x in a if x if b]

def tried(a):
    try:
        a()
    except (ValueError, TypeError):
        pass
    except OSError:
        raise
    else:
        return 1 if a else 2
    finally:
        a.close()

def looped(a):
    while a:
        for one in a:
            with one:
                continue
        else:
            break
    return any(x for x in a)

def matched(a):
    match a:
        case 1 | 2:
            return 1
        case [x] if x:
            return 2
        case _:
            return 3
"""


RADON = {"plain": 1, "chosen": 8, "tried": 5, "looped": 5, "matched": 3}
"""What radon 6.0.1 counts in KNOWN."""
APART = {"tried": -1, "looped": -1, "matched": 1}
"""An `else` of a loop or a `try` is no path of its own; the guard of a case is one."""


def test_complexity_is_what_radon_counts_but_for_elses_and_guards() -> None:
    module = parse_module("python", KNOWN.encode())

    found = {one.name: one.complexity for one in module.functions}
    assert found == {name: count + APART.get(name, 0) for name, count in RADON.items()}


def test_cognitive_weight_is_what_other_tools_say() -> None:
    weights = {one.name: one.cognitive for one in parse_module("python", KNOWN.encode()).functions}

    # cognitive_complexity 1.3.0; it counts neither comprehensions nor `match`.
    assert {name: weights[name] for name in ("plain", "tried", "looped")} == {
        "plain": 0,
        "tried": 3,
        "looped": 4,
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_cannot_be_parsed_is_told_and_the_rest_is_read(language: Language) -> None:
    module = parse_module(language, (SOURCES[language] + "\n)]} ((\n").encode())

    assert module.broken_lines
    assert [one.name.lower() for one in module.functions] == ["total"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_bytes_that_are_no_text_are_read_as_far_as_they_go(language: Language) -> None:
    comment = "# d\xe9j\xe0\n" if language == "python" else "// d\xe9j\xe0\n"
    module = parse_module(language, (SOURCES[language] + comment).encode("latin-1"))

    assert [one.name.lower() for one in module.functions] == ["total"]


@pytest.mark.parametrize(
    ("language", "content"),
    [
        ("python", b"x = " + b" + ".join([b"a"] * 20_000)),
        ("javascript", b"x = a" + b".b()" * 10_000),
        ("go", b"package p\nvar x = " + b"[" * 10_000 + b"]" * 10_000),
        ("java", b"class A { String x = " + b" + ".join([b'"a"'] * 10_000) + b"; }"),
        ("rust", b"fn f() { " + b"if a { " * 5_000 + b"} " * 5_000 + b"}"),
        ("typescript", b"function f() {" * 4_000 + b"}" * 4_000),
        # Signs in a row, of which nothing can be made: a search would take minutes.
        ("python", b"(" * 100_000),
        ("javascript", b"!" * 100_000),
        ("rust", b"fn f() { m!(" + b"+ " * 50_000 + b"); }"),
        # One line as long as some files are.
        ("python", b"x = [" + b"'abc', " * 20_000 + b"]\n"),
    ],
)
def test_deep_nests_and_long_lines_take_no_longer_than_others(
    language: Language, content: bytes
) -> None:
    assert (
        takes(lambda _: (outline_source(language, content), parse_module(language, content)), 30)
        < 30
    )


def test_what_stands_after_a_long_chain_is_still_found() -> None:
    chain = b"x = " + b" + ".join([b"a"] * 20_000)

    assert b"last" in outline_source("python", chain + b"\ndef last(): pass\n").defined.split(b"\n")


def test_a_file_over_two_megabytes_is_not_read_and_says_so() -> None:
    content = b"x = 1\n" * (MAX_SOURCE_BYTES // 6 + 1)

    assert parse_module("python", content).note == "Not read: it is larger than 2 MB."
    assert outline_source("python", content).names == b""


def test_words_are_told_in_comments_too() -> None:
    found = extract_words("größe = $x.y_1 + 10 # 5px, it's".encode())

    assert found == {"größe".encode(), b"$x", b"y_1", b"10", b"5px", b"it", b"s"}


@given(st.sampled_from(LANGUAGES), st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_no_bytes_make_it_fail(language: Language, content: bytes) -> None:
    module = parse_module(language, content)
    outline = outline_source(language, content)

    assert module.prints == tuple(memoryview(outline.prints).cast("Q"))
    lines = content.count(b"\n") + 1
    assert all(1 <= one.first_line <= one.last_line <= lines for one in module.functions)
