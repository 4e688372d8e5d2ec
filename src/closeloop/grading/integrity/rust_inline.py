"""Put the tests inside a Rust source file back to what they were before an agent's change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from closeloop.grading.integrity.perturb_rust import list_siblings, read_attribute_name
from closeloop.grading.integrity.source_edits import (
    SourceEdit,
    apply_edits,
    insert_text,
    node_text,
    parse_source,
)
from closeloop.records.record import Record

if TYPE_CHECKING:
    from tree_sitter import Node

_TEST_ATTRIBUTE = re.compile(r"(?:\w+::)*(?:test|bench|rstest|test_case)")
_TEST_MODULES = frozenset({"test", "tests"})
_CONTAINERS = frozenset(
    {"mod_item", "impl_item", "trait_item", "function_item", "struct_item", "enum_item"}
)

Container = tuple[str, ...]


class _TestItem(Record):
    """Something that only exists when tests are built."""

    container: Container
    key: str
    start: int
    end: int
    text: str


def restore_inline_tests(agent_text: str, base_text: str) -> str | None:
    """Return the agent's source file with the test code of the base, and no other test code.

    Test code is what has `#[cfg(test)]`, `#[test]` and the like, or is a module named `tests`, at
    any depth. None where that cannot be done: one of the files does not parse, or what the base's
    test code stands in is gone.
    """
    agent = parse_source("tree_sitter_rust", agent_text.encode())
    base = parse_source("tree_sitter_rust", base_text.encode())
    if agent is None or base is None:
        return None
    try:
        return _restore(agent, base, agent_text, base_text)
    except RecursionError:  # nested deeper than people write
        return None


def _restore(agent: Node, base: Node, agent_text: str, base_text: str) -> str | None:
    if _is_only_for_tests(base):
        return base_text
    if _is_only_for_tests(agent):
        return None
    missing = _group_items(_list_test_items(base, ()))
    ends = dict(_list_container_ends(agent, ()))
    edits = []
    for item in _list_test_items(agent, ()):
        originals = missing.get((item.container, item.key), [])
        text = originals.pop(0).text if originals else ""
        edits.append(SourceEdit(start=item.start, end=item.end, text=text))
    for (container, _), items in missing.items():
        for item in items:
            if container not in ends:
                return None
            edits.append(insert_text(ends[container], f"\n{item.text}\n"))
    return apply_edits(agent_text.encode(), edits).decode()


def _is_only_for_tests(root: Node) -> bool:
    """Whether the whole file is under `#![cfg(test)]`."""
    inner = [node for node in root.named_children if node.type == "inner_attribute_item"]
    return any(_asks_for_tests(attribute) for attribute in inner)


def _group_items(items: Iterator[_TestItem]) -> dict[tuple[Container, str], list[_TestItem]]:
    groups: dict[tuple[Container, str], list[_TestItem]] = {}
    for item in items:
        groups.setdefault((item.container, item.key), []).append(item)
    return groups


def _list_test_items(node: Node, container: Container) -> Iterator[_TestItem]:
    for item, attributes in list_siblings(node.named_children):
        if _is_test_item(item, attributes):
            start = min(one.start_byte for one in (item, *attributes))
            after = item.next_sibling
            end = after.end_byte if after is not None and after.type == "," else item.end_byte
            text = (node.text or b"")[start - node.start_byte : end - node.start_byte]
            yield _TestItem(
                container=container,
                key=_make_key(item),
                start=start,
                end=end,
                text=text.decode("utf-8", "replace"),
            )
        else:
            inside = (*container, _make_key(item)) if item.type in _CONTAINERS else container
            yield from _list_test_items(item, inside)


def _list_container_ends(node: Node, container: Container) -> Iterator[tuple[Container, int]]:
    """Where items may be added: at the end of the file, of modules, implementations and traits."""
    if not container:
        yield container, node.end_byte
    for item in node.named_children:
        body = item.child_by_field_name("body")
        if body is not None and body.type == "declaration_list" and item.type in _CONTAINERS:
            inside = (*container, _make_key(item))
            yield inside, body.end_byte - 1
            yield from _list_container_ends(body, inside)


def _make_key(item: Node) -> str:
    """What makes it the same item in another version of the file."""
    name, body = item.child_by_field_name("name"), item.child_by_field_name("body")
    if name is not None:
        return f"{item.type} {node_text(name)}"
    head = item.text or b""
    if body is not None and item.type == "impl_item":
        head = head[: body.start_byte - item.start_byte]
    return f"{item.type} {' '.join(head.decode('utf-8', 'replace').split())}"


def _is_test_item(item: Node, attributes: list[Node]) -> bool:
    names = [read_attribute_name(attribute) for attribute in attributes]
    return (
        any(_TEST_ATTRIBUTE.fullmatch(name) for name in names)
        or any(_asks_for_tests(attribute) for attribute in attributes)
        or (
            item.type == "mod_item" and node_text(item.child_by_field_name("name")) in _TEST_MODULES
        )
    )


def _asks_for_tests(attribute: Node) -> bool:
    """Whether it is a `cfg` that holds only, or also, when tests are built."""
    if read_attribute_name(attribute) != "cfg":
        return False
    condition = re.sub(r'"[^"]*"|\bnot\s*\([^()]*\)', "", node_text(attribute))
    return bool(re.search(r"\btest\b", condition))
