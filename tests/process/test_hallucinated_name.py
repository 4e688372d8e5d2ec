"""hallucinated-name: made up, and found out."""

from __future__ import annotations

import pytest
from rules import edit, found

from closeloop.records.finding import Unmeasured

RULE = "hallucinated-name"


def _fails(output: str, command: str = "pytest -q") -> dict:
    return {"run": {"command": command, "exit": 1, "output": output}}


CASES = [
    (
        "client.fetch_everything()",
        "AttributeError: 'Client' object has no attribute 'fetch_everything'",
    ),
    (
        "from shop import apply_voucher",
        "ImportError: cannot import name 'apply_voucher' from 'shop'",
    ),
    ("import shop.vouchers", "ModuleNotFoundError: No module named 'shop.vouchers'"),
    (
        "load(path, strictly=True)",
        "TypeError: load() got an unexpected keyword argument 'strictly'",
    ),
    ("total = compute_tax(9)", "NameError: name 'compute_tax' is not defined"),
    ("a.flatDeep()", "a.ts(3,4): error TS2551: Property 'flatDeep' does not exist on type 'A'."),
    ("x := strings.Capitalize(s)", "./a.go:3:6: undefined: strings.Capitalize"),
    ("v.sort_desc();", "error[E0599]: no method named `sort_desc` found for struct `Vec`"),
]


@pytest.mark.parametrize(("code", "error"), CASES)
def test_a_name_that_nothing_showed(code: str, error: str) -> None:
    events = [{"read": {"path": "b.py", "text": "class Client: ..."}}, edit(after=code)]
    (finding,) = found(RULE, [*events, _fails(error)])
    assert finding.events == (2, 3)
    assert "cart.py" in finding.message


@pytest.mark.parametrize(("code", "error"), CASES)
def test_a_name_that_was_shown_before(code: str, error: str) -> None:
    shown = {"read": {"path": "b.py", "text": f"# once: {code}"}}
    assert found(RULE, [shown, edit(after=code), _fails(error)]) == []


@pytest.mark.parametrize(("code", "error"), CASES)
def test_a_name_that_was_there_before_the_edit(code: str, error: str) -> None:
    assert found(RULE, [edit(before=code, after=f"{code}\n# see above"), _fails(error)]) == []


def test_a_name_in_the_line_that_was_replaced() -> None:
    code, error = CASES[0]
    assert found(RULE, [edit(before=code, after=f"x = {code}"), _fails(error)]) == []
    patch = f" {code}\n+y = {code}"
    patched = {"edit": {"path": "cart.py", "patch": patch}}
    assert found(RULE, [patched, _fails(error)]) == []


def test_an_option_that_does_not_exist() -> None:
    error = "error: unrecognized arguments: --only-failing"
    (finding,) = found(RULE, [_fails(error, "pytest --only-failing")])
    assert finding.events == (1,)


@pytest.mark.parametrize(
    "events",
    [
        # A package that is not installed is the machine's fault.
        [edit(after="import requests"), _fails("ModuleNotFoundError: No module named 'requests'")],
        # So is an option of a plug-in.
        [_fails("error: unrecognized arguments: --cov=src", "pytest --cov=src")],
        # A test written first.
        [
            edit("t.py", after="from cart import discount"),
            _fails("ImportError: cannot import name 'discount' from 'cart'"),
            edit("cart.py", after="def discount(): ..."),
        ],
        # Asked for by the user.
        [
            {"user": "Call client.fetch_everything()"},
            edit(after="client.fetch_everything()"),
            _fails("AttributeError: 'Client' object has no attribute 'fetch_everything'"),
        ],
        # A forgotten import.
        [
            edit(after="d = defaultdict(list)"),
            _fails("NameError: name 'defaultdict' is not defined"),
            edit(after="from collections import defaultdict"),
        ],
        # An attribute of its own.
        [
            edit(after="self.cache_key = 1"),
            edit(after="return self.cache_key"),
            _fails("AttributeError: 'A' object has no attribute 'cache_key'"),
        ],
        # Code that was there.
        [_fails("AttributeError: 'Client' object has no attribute 'fetch_everything'")],
        # A check that passed and only prints it.
        [
            edit(after="client.fetch_everything()"),
            {
                "run": {
                    "command": "grep -r x",
                    "exit": 0,
                    "output": "has no attribute 'fetch_everything'",
                }
            },
        ],
    ],
)
def test_what_is_not_made_up(events: list[dict]) -> None:
    assert found(RULE, events) == []


def test_without_what_was_read_nothing_can_be_said() -> None:
    code, error = CASES[0]
    assert isinstance(found(RULE, [{"read": "a.py"}, edit(after=code), _fails(error)]), Unmeasured)


def test_an_empty_trace_has_none() -> None:
    assert found(RULE, []) == []
