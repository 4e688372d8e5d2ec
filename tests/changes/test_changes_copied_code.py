"""copied-code: what the repository already has is not written again."""

from __future__ import annotations

from pathlib import Path

from inspected import said, told

from closeloop.changes.quality import copied_code
from closeloop.records.settings import CheckSettings

SLUG = '''\
import re
import unicodedata


def slug(text):
    """A name as a key."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
'''
COPY = """\
import re
import unicodedata


def file_key(name):
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower()).strip("-")
"""
LONG = '''\
def spread(total, weights):
    """Parts of a sum that add up to it."""
    if not weights:
        raise ValueError("nothing to spread over")
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    missing = total - sum(parts)
    ranked = sorted(range(len(weights)), key=lambda at: -(total * weights[at] % whole))
    for at in ranked[:missing]:
        parts[at] += 1
    if sum(parts) != total:
        raise AssertionError(f"{parts} do not add up to {total}, for weights {weights}")
    return parts
'''


def test_a_small_helper_written_again_is_told_with_the_name_of_the_first(tmp_path: Path) -> None:
    (one,) = said(copied_code, tmp_path, {"shop/text.py": SLUG}, {"shop/export.py": COPY})
    assert one.message == "`file_key` duplicates `slug` in shop/text.py:5: use that."
    assert one.places == ("shop/export.py:5", "shop/text.py:5")
    assert (one.severity, one.mode) == ("warning", "context blindness")


def test_a_long_function_copied_whole_is_an_error(tmp_path: Path) -> None:
    renamed = LONG.replace("spread", "share_out").replace("parts", "shares").replace("at]", "i]")
    found = said(copied_code, tmp_path, {"a.py": LONG}, {"b.py": renamed.replace("at:", "i:")})
    assert told(found) == [("error", "b.py:1")]


def test_a_part_of_a_function_is_told_where_it_begins(tmp_path: Path) -> None:
    lines = LONG.splitlines()[2:10]
    inlined = "\n".join(["def bill(total, weights, names):", "    names = list(names)", *lines])
    more = "\n    for name, part in zip(names, parts):\n        print(name.title(), part)\n"
    (one,) = said(copied_code, tmp_path, {"a.py": LONG}, {"b.py": inlined + more})
    assert (one.severity, one.places[0]) == ("warning", "b.py:3")
    assert "`bill` duplicate `spread` in a.py:3" in one.message


def test_code_that_only_moved_is_no_copy(tmp_path: Path) -> None:
    assert not said(copied_code, tmp_path, {"a.py": LONG}, {"a.py": "x = 1\n", "b.py": LONG})


def test_two_copies_inside_the_change_are_told_once(tmp_path: Path) -> None:
    found = said(
        copied_code,
        tmp_path,
        {"c.py": "x = 1\n"},
        {"a.py": LONG, "b.py": LONG.replace("spread", "s")},
    )
    assert told(found) == [("warning", "b.py:1")]


def test_two_classes_that_answer_alike_are_no_error(tmp_path: Path) -> None:
    inside = "".join(f"    {line}\n" for line in LONG.splitlines())
    before, after = f"class A:\n{inside}", f"class B:\n{inside}"
    assert told(said(copied_code, tmp_path, {"a.py": before}, {"b.py": after})) == [
        ("warning", "b.py:2")
    ]


def test_a_function_that_repeats_itself_is_not_its_own_copy(tmp_path: Path) -> None:
    body = "".join(f"{line}\n" for line in LONG.splitlines()[2:10])
    twice = f"def spread(total, weights):\n{body}    print(parts)\n{body}    return parts\n"
    assert not said(copied_code, tmp_path, {}, {"a.py": twice})


def test_functions_that_were_alike_may_be_changed_alike(tmp_path: Path) -> None:
    new = "    parts = [round(part, 2) for part in parts if part.real and part != whole]\n"
    after = LONG.replace("    return parts\n", new + "    return parts\n")
    twin, twin_after = LONG.replace("spread", "aspread"), after.replace("spread", "aspread")
    assert not said(
        copied_code, tmp_path, {"a.py": LONG, "b.py": twin}, {"a.py": after, "b.py": twin_after}
    )


def test_tests_examples_and_data_may_repeat_each_other(tmp_path: Path) -> None:
    table = (
        "TABLE = {\n" + "".join(f"    'key {n}': ('value {n}', {n}),\n" for n in range(40)) + "}\n"
    )
    before = {"a.py": LONG, "one.py": table}
    after = {"tests/helpers.py": LONG, "examples/demo.py": LONG, "two.py": table}
    assert not said(copied_code, tmp_path, before, after)


def test_the_threshold_is_a_setting(tmp_path: Path) -> None:
    settings = CheckSettings(copied_tokens=500)
    assert not said(copied_code, tmp_path, {"a.py": LONG}, {"b.py": LONG}, settings)


def test_copies_are_found_in_other_languages_too(tmp_path: Path) -> None:
    script = """\
export function total(lines, rate) {
  const net = lines.filter((line) => !line.free).map((line) => line.price * line.count);
  const sum = net.reduce((left, right) => left + right, 0);
  if (sum < 0) {
    throw new RangeError(`negative: ${sum}`);
  }
  return Math.round(sum * (100 + rate)) / 100;
}
"""
    found = said(
        copied_code, tmp_path, {"a.ts": script}, {"b.ts": script.replace("total", "grossOf")}
    )
    assert told(found)[0][1] == "b.ts:1"


def test_names_that_begin_with_a_keyword_hide_no_copy(tmp_path: Path) -> None:
    original = """\
def settle(user, form):
    if user.closed or form is None:
        raise ValueError("nothing to settle", user)
    user.open = [bill for bill in user.bills if bill.due <= user.today]
    for bill in sorted(user.open, key=user.rank):
        bill.record(user, form.amount)
        form.amount -= bill.value * user.rate
        user.credit = min(user.credit, form.amount)
    form.save(user)
    return user, form
"""
    copy = original.replace("user", "account").replace("form", "sheet").replace("settle", "square")
    found = said(copied_code, tmp_path, {"a.py": original}, {"b.py": copy})
    assert [one.message for one in found] == ["`square` duplicates `settle` in a.py:1: use that."]


def test_a_copy_that_calls_itself_is_found_under_its_new_name(tmp_path: Path) -> None:
    """As `freeze` of tinydb, whose calls of itself are in each of its statements."""
    original = """\
def freeze(value):
    if isinstance(value, dict):
        return FrozenDict((key, freeze(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(freeze(inner) for inner in value)
    if isinstance(value, set):
        return frozenset(freeze(inner) for inner in value)
    return value
"""
    copy = original.replace("freeze", "harden").replace("value", "thing")
    found = said(copied_code, tmp_path, {"a.py": original}, {"b.py": copy})
    assert [one.message for one in found] == ["`harden` duplicates `freeze` in a.py:1: use that."]


def test_a_copy_that_begins_with_an_inner_function_is_told_whole(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in LONG.splitlines()[2:])
    outer = "def plan(total, weights):\n    def spread(key):\n        return weights.get(key)\n\n"
    original = outer + body.replace("    ", "", 1).replace("\n    ", "\n")
    copy = original.replace("plan", "draft").replace("spread", "ask").replace("key", "name")
    found = said(copied_code, tmp_path, {"a.py": original}, {"b.py": copy})
    assert [one.message for one in found] == ["`draft` duplicates `plan` in a.py:1: use that."]
