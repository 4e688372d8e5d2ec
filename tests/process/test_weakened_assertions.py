"""Assertions that say less than before, and handlers that swallow: told line by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.text.code_patterns import (
    find_loosened_assertion,
    find_new_mark,
    find_swallowed_errors,
    parse_assertion,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert total == 7350", "assert total > 0"),
        ("== 7350", "> 0"),
        ("assert f(1) == 2", "assert f(1) is not None"),
        ("assert 'a' in b", "assert 'a' not in b"),
        ("assert not x", "assert x"),
        ("self.assertIn('a', b)", "self.assertNotIn('a', b)"),
        ("assertIn", "assertNotIn"),
        ("self.assertEqual(x, 3)", "self.assertTrue(x)"),
        ("self.assertEqual(x, 3)", "self.assertGreater(x, 0)"),
        ("expect(x).toBe(3)", "expect(x).toBeTruthy()"),
        ("expect(x).not.toBe(3)", "expect(x).toBe(3)"),
        (
            "np.testing.assert_allclose(a, b, rtol=1e-7)",
            "np.testing.assert_allclose(a, b, rtol=0.1)",
        ),
        ("assert x == pytest.approx(1.5, abs=0.01)", "assert x == pytest.approx(1.5, abs=0.5)"),
        ("self.assertAlmostEqual(a, b, places=7)", "self.assertAlmostEqual(a, b, places=2)"),
        ("assert abs(x - 7350) < 0.01", "assert abs(x - 7350) < 5000"),
    ],
)
def test_the_same_thing_is_asserted_less_strictly(before: str, after: str) -> None:
    assert find_loosened_assertion([before], [after]) == (before, after)
    assert find_loosened_assertion([before], [after, before]) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert x == 3", "assert x == 4"),
        ("assert x > 0", "assert x == 3"),
        ("self.assertTrue(x)", "self.assertEqual(x, 3)"),
        ("assert x == 3", "assert y is not None"),
        ("assert_allclose(a, b, rtol=0.1)", "assert_allclose(a, b, rtol=1e-7)"),
        ("assert abs(x - 3) < 0.1", "assert abs(x - 3) < 0.01"),
        ("x = 1", "x = 2"),
    ],
)
def test_as_strict_or_stricter_or_something_else_is_not_less(before: str, after: str) -> None:
    assert find_loosened_assertion([before], [after]) is None


@given(st.text())
def test_any_line_may_be_parsed(line: str) -> None:
    parse_assertion(line)
    list(find_swallowed_errors(line))
    find_new_mark(line, (), has_complaint=True)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("try:\nf()\nexcept Exception:\npass", 1),
        ("try:\nf()\nexcept:\ncontinue", 1),
        ("try {\nf()\n} catch (e) {}", 1),
        ("try {\nf()\n} catch (e) {\n// ignore\n}", 1),
        ("load().catch(() => {})", 1),
        ("try:\nimport fast\nexcept Exception:\npass", 0),
        ("try:\nos.unlink(path)\nexcept Exception:\npass", 0),
        ("try:\nf()\nexcept Exception:\npass  # the cache is only a help", 0),
        ("try {\nf()\n} catch (e) {\n// hooks must not stop the agent\n}", 0),
        ("try {\nf()\n} catch (e) {\nconsole.log(e)\n}", 0),
        ("server.close().catch(() => {})", 0),
        ("try:\nf()\nexcept KeyError:\npass", 0),
    ],
)
def test_handlers_that_swallow_every_error(text: str, count: int) -> None:
    assert len(list(find_swallowed_errors(text))) == count
