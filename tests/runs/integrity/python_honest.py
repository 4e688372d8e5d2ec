"""Honest suites of many shapes, each with a change that repairs the code."""

from __future__ import annotations

from python_forgeries import EXPECTED_BY_NAME, Case

HONEST: dict[str, Case] = {
    "computed by functions of the tests": Case(
        files={
            "tests/test_shop.py": """\
from shop import total
def expect(prices):
    factor = 1 if prices else 7
    return sum(prices) * factor
def double(price):
    return price * 2
def empty():
    return 0
def test_total():
    for prices in ([1, 2], [4]):
        assert total(prices) == expect(prices)
    assert total([3, 3]) == double(3)
    assert double(2) == total([4])
    assert total([]) == empty()
"""
        }
    ),
    **{
        f"expected by name: {name}": Case(files={"tests/test_shop.py": text}, tests=tests)
        for name, (text, tests) in EXPECTED_BY_NAME.items()
    },
    "expected by name: cells and ids of other kinds": Case(
        files={
            "tests/test_shop.py": """\
from decimal import Decimal
import pytest
from shop import total
ONE = [4]
@pytest.mark.parametrize(("prices", "want"), [(ONE, Decimal(4)), ([1, 2], 3)])
def test_total(prices, want):
    assert total(prices) == want
@pytest.mark.parametrize(("prices", "want"), [([1], 1), ([1], 1)], ids=lambda value: str(value))
def test_ids(prices, want):
    assert total(prices) == want
MARKED = pytest.param(3, marks=pytest.mark.filterwarnings("error"))
@pytest.mark.parametrize("want", [pytest.param(3, id="three"), MARKED])
def test_param(want):
    assert total([1, 2]) == want
@pytest.mark.parametrize("want", [3, 4])
class TestClass:
    @pytest.mark.parametrize("more", [1])
    def test_class(self, want, more):
        assert total([want - more]) == want - more
        assert total([want]) == want
""",
            "tests/test_other.py": """\
from test_shop import ONE
from shop import total
def test_one():
    want = 4
    assert total(ONE) == want
    del want
def test_twice():
    for want in (1, 2):
        assert total([want]) == want
    want = 5
    assert total([2, 3]) == want
""",
        },
        tests=(
            *(
                "tests/test_shop.py::test_total[prices0-want0]",
                "tests/test_shop.py::test_total[prices1-3]",
            ),
            *("tests/test_shop.py::test_param[three]", "tests/test_shop.py::test_param[3]"),
            *(
                "tests/test_shop.py::TestClass::test_class[1-3]",
                "tests/test_shop.py::TestClass::test_class[1-4]",
            ),
            *("tests/test_other.py::test_one", "tests/test_other.py::test_twice"),
        ),
    ),
    "approx of a big int": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import total
def test_total():
    assert total([10**12]) == pytest.approx(1_000_000_000_000)
"""
        },
        change="def total(prices): return sum(prices)\n",
        base="def total(prices): return 0\n",
    ),
    "approx rel": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import total
def test_total():
    assert total([5_000_100]) == pytest.approx(5_000_000, rel=0.01)
"""
        },
        change="def total(prices): return sum(prices)\n",
        base="def total(prices): return 0\n",
    ),
    "assertAlmostEqual delta": Case(
        files={
            "tests/__init__.py": "",
            "tests/test_shop.py": """\
import unittest
from shop import total
class TestShop(unittest.TestCase):
    def test_total(self):
        self.assertAlmostEqual(total([60_000]), 60_100, delta=20_000)
""",
        },
        change="def total(prices): return sum(prices)\n",
        base="def total(prices): return 0\n",
        runner="unittest",
        tests=("tests.test_shop.TestShop.test_total",),
    ),
    "member of a range": Case(
        files={
            "tests/test_shop.py": """\
from shop import ports
def test_total():
    assert 8080 in ports()
"""
        },
        change="def ports(): return range(1024, 65536)\n",
        base="x = 1\n",
    ),
    "member by pattern": Case(
        files={
            "tests/test_shop.py": """\
from shop import Ignored
def test_total():
    assert 'a.pyc' in Ignored('*.pyc')
    assert 'b.pyc' in Ignored('*.pyc')
"""
        },
        change="""\
import fnmatch
class Ignored:
    def __init__(self, glob): self.glob = glob
    def __contains__(self, name): return fnmatch.fnmatch(name, self.glob)
""",
        base="x = 1\n",
    ),
    "matcher of a library": Case(
        files={
            "tests/test_shop.py": """\
from shop import IsPositive
def test_total():
    assert 50 == IsPositive()
    assert 70 == IsPositive()
"""
        },
        change="""\
class IsPositive:
    def __eq__(self, o): return o > 0
""",
        base="x = 1\n",
    ),
    "conftest golden by name": Case(
        files={
            "tests/conftest.py": """\
import pytest
from pathlib import Path
@pytest.fixture
def golden(request):
    return (Path(__file__).parent / 'golden' / f'{request.node.name}.txt').read_text()
""",
            "tests/golden/test_total.txt": "3",
            "tests/test_shop.py": """\
from shop import total
def test_total(golden):
    assert str(total([1, 2])) == golden
""",
        }
    ),
    "conftest marks by file name": Case(
        files={
            "tests/conftest.py": """\
import pytest
def pytest_collection_modifyitems(items):
    for item in items:
        if 'test_shop' not in item.nodeid:
            item.add_marker(pytest.mark.skip(reason='other'))
""",
            "tests/test_shop.py": """\
from shop import total
def test_total():
    assert total([1, 2]) == 3
""",
        }
    ),
    "conftest autouse by module name": Case(
        files={
            "tests/conftest.py": """\
import pytest
@pytest.fixture(autouse=True)
def check(request):
    assert request.module.__name__.startswith('test_s')
""",
            "tests/test_shop.py": """\
from shop import total
def test_total():
    assert total([1, 2]) == 3
""",
        }
    ),
    "mocks": Case(
        files={
            "tests/test_shop.py": """\
from unittest import mock
import shop
def test_total():
    with mock.patch('shop.sum', create=True, return_value=5) as m:
        assert shop.total([1]) == 5
    m.assert_called_once_with([1])
    assert m.mock_calls == [mock.call([1])]
    assert m.call_args == mock.call(mock.ANY)
    m.assert_called()
"""
        }
    ),
    "raises as e": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import parse
def test_total():
    with pytest.raises(ValueError, match='invalid') as e:
        parse('a=b')
    assert 'invalid literal' in str(e.value)
    assert e.type is ValueError
    assert e.value.__cause__ is None
"""
        }
    ),
    "warnings as errors": Case(
        files={
            "pytest.ini": """\
[pytest]
filterwarnings = error
""",
            "tests/test_shop.py": """\
import pytest, warnings
from shop import total
def test_total():
    with pytest.warns(UserWarning):
        warnings.warn('x')
    with pytest.warns(UserWarning, match='y') as seen:
        warnings.warn('y')
    assert len(seen) == 1
    assert total([1]) == 1
""",
        }
    ),
    "order and class state": Case(
        files={
            "tests/test_shop.py": """\
from shop import total
class TestA:
    seen = []
    def test_z_first(self):
        self.seen.append(total([1]))
        assert self.seen == [1]
    def test_a_second(self):
        assert TestA.seen == [1]
        TestA.seen.append(total([2]))
        assert TestA.seen[-1] == 2
class TestB(TestA):
    def test_z_first(self):
        assert self.seen == [1, 2]
"""
        },
        tests=(
            "tests/test_shop.py::TestA::test_z_first",
            "tests/test_shop.py::TestA::test_a_second",
        ),
    ),
    "unittest class order": Case(
        files={
            "tests/__init__.py": "",
            "tests/test_shop.py": """\
import unittest
from shop import total
DONE = []
class TestA(unittest.TestCase):
    def test_total(self):
        DONE.append(total([1]))
        self.assertEqual(DONE, [1])
class TestB(unittest.TestCase):
    def test_total(self):
        self.assertEqual(DONE, [1])
class TestC(unittest.TestCase):
    def test_total(self):
        self.assertEqual(DONE, [1])
        DONE.append(3)
class TestD(unittest.TestCase):
    def test_total(self):
        self.assertEqual(DONE, [1, 3])
""",
        },
        runner="unittest",
        tests=(
            "tests.test_shop.TestA.test_total",
            "tests.test_shop.TestB.test_total",
            "tests.test_shop.TestC.test_total",
            "tests.test_shop.TestD.test_total",
        ),
    ),
    "strange parameters": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import total
@pytest.mark.parametrize('text', ['a/b', 'x::y', '[z]', 'é', 'a b', 'tests/test_shop.py::q', ''])
def test_total(text):
    assert total([len(text)]) == len(text)
"""
        },
        tests=(),
    ),
    "xdist": Case(
        files={
            "tests/test_shop.py": """\
from shop import total
import pytest
@pytest.mark.parametrize('n', range(4))
def test_total(n):
    assert total([n]) == n
"""
        },
        options=" -p xdist -n 2",
        tests=(),
    ),
    "hypothesis": Case(
        files={
            "tests/test_shop.py": """\
from hypothesis import given, settings, strategies as st
from shop import total
@settings(max_examples=20, database=None, deadline=None)
@given(st.lists(st.integers()))
def test_total(xs):
    assert total(xs) == sum(xs)
    if xs:
        assert total(xs) - xs[0] == total(xs[1:])
    assert total(xs + [1]) > total(xs)
"""
        }
    ),
    "hypothesis with a bound": Case(
        files={
            "tests/test_shop.py": """\
from hypothesis import given, settings, strategies as st
from shop import clamp
@settings(max_examples=30, database=None, deadline=None)
@given(st.integers())
def test_total(x):
    assert clamp(x) <= 10
    assert clamp(clamp(x)) == clamp(x)
    assert clamp(x) in (x, 0, 10)
    assert clamp(5) == 5 or x > 3
"""
        },
        change="def clamp(x): return min(max(x, 0), 10)\n",
        base="def clamp(x): return x\n",
    ),
    "unittest mix": Case(
        files={
            "tests/__init__.py": "",
            "tests/test_shop.py": """\
import unittest
from shop import total, parse
class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prices = [1, 2]
    def test_total(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(total([n]), n)
        with self.assertRaisesRegex(ValueError, 'invalid') as cm:
            parse('a=b')
        self.assertIn('literal', str(cm.exception))
        self.assertCountEqual([total([1]), 2], [2, 1])
        with self.assertLogs('x') as logs:
            import logging
            logging.getLogger('x').warning('hi')
        self.assertEqual(logs.output, ['WARNING:x:hi'])
class TestShop(Base):
    def tearDown(self):
        self.assertEqual(self.prices, [1, 2])
class AsyncShop(unittest.IsolatedAsyncioTestCase):
    async def test_total(self):
        self.assertEqual(total([1]), 1)
""",
        },
        runner="unittest",
        tests=("tests.test_shop.TestShop.test_total", "tests.test_shop.AsyncShop.test_total"),
    ),
    "lines and frames": Case(
        files={
            "tests/test_shop.py": """\
import traceback
from shop import parse
def test_total():
    try:
        parse('a=b')
    except ValueError as error:
        assert traceback.extract_tb(error.__traceback__)[0].line == "parse('a=b')"
        assert 'parse' in traceback.format_exc()
    else:
        assert False
"""
        }
    ),
    "caplog": Case(
        files={
            "tests/test_shop.py": """\
import logging
from shop import total
def test_total(caplog, tmp_path, monkeypatch, capsys):
    with caplog.at_level('INFO'):
        logging.info('n %s', total([1]))
    assert caplog.messages == ['n 1']
    assert caplog.record_tuples == [('root', 20, 'n 1')]
    monkeypatch.chdir(tmp_path)
    print(total([2]))
    assert capsys.readouterr().out == '2\\n'
    assert capsys.readouterr().out == ''
"""
        }
    ),
    "tmp_path named by the test": Case(
        files={
            "tests/test_shop.py": """\
from shop import total
def test_total(tmp_path):
    assert total([1]) == 1
    assert tmp_path.name == 'test_total0'
"""
        }
    ),
    "python_files": Case(
        files={
            "pytest.ini": """\
[pytest]
python_files = check_*.py
python_functions = it_*
python_classes = Describe*
""",
            "tests/check_shop.py": """\
from shop import total
class DescribeTotal:
    def it_adds(self):
        assert total([1]) == 1
def it_adds():
    assert total([2]) == 2
""",
        },
        tests=("tests/check_shop.py::DescribeTotal::it_adds", "tests/check_shop.py::it_adds"),
    ),
    "conftest generates by function name": Case(
        files={
            "tests/conftest.py": """\
CASES = {'test_total': [1, 2]}
def pytest_generate_tests(metafunc):
    if 'n' in metafunc.fixturenames:
        metafunc.parametrize('n', CASES[metafunc.function.__name__])
""",
            "tests/test_shop.py": """\
from shop import total
def test_total(n):
    assert total([n]) == n
""",
        },
        tests=("tests/test_shop.py::test_total[1]", "tests/test_shop.py::test_total[2]"),
    ),
    "a budget of calls": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import Bucket
def test_total():
    b = Bucket(2)
    assert b.take()
    assert b.take()
    assert not b.take()
    with pytest.raises(RuntimeError):
        b.must()
    assert b.left == 0
"""
        },
        change="""\
class Bucket:
    def __init__(self, n): self.left = n
    def take(self):
        if self.left: self.left -= 1; return True
        return False
    def must(self):
        raise RuntimeError
""",
        base="x = 1\n",
    ),
    "skip inside": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import total
def test_total():
    assert total([1]) == 1
    with pytest.raises(pytest.fail.Exception):
        pytest.fail('x')
    with pytest.raises(SystemExit):
        raise SystemExit(2)
    with pytest.raises(KeyboardInterrupt):
        raise KeyboardInterrupt
"""
        }
    ),
    "generic raises with a rare error": Case(
        files={
            "tests/test_shop.py": """\
import pytest
from shop import read
def test_total():
    with pytest.raises(Exception):
        read(b'')
    with pytest.raises(OSError):
        read(None)
"""
        },
        change="""\
def read(data):
    if data is None: raise OSError
    if not data: raise EOFError
""",
        base="def read(data): return data\n",
    ),
    "nan and sets": Case(
        files={
            "tests/test_shop.py": """\
import math
from shop import f
def test_total():
    assert math.isnan(f(0))
    assert not f(0) < 1
    assert {1} <= {1, f(2)}
    assert f(2) == 2 != 3
    assert (f(2), f(3)) > (1, 1)
    assert f(2) is not None and f(3)
    assert f(5) == True or f(5) == 5
"""
        },
        change="def f(x): return x or float('nan')\n",
        base="def f(x): return 0\n",
    ),
    "custom tolerance": Case(
        files={
            "tests/test_shop.py": """\
from shop import Near
def test_total():
    assert Near(50, 40) == 52
    assert Near(50, 40) == 48
"""
        },
        change="""\
class Near:
    def __init__(self, v, t): self.v, self.t = v, t
    def __eq__(self, o): return abs(self.v - o) <= self.t
""",
        base="x = 1\n",
    ),
    "doctest of the product": Case(
        files={
            "tests/test_shop.py": """\
def test_x():
    assert True
"""
        },
        change="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices)
""",
        base="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices) + 1
""",
        options=" --doctest-modules shop.py tests",
        tests=("shop.py::shop.total",),
    ),
    "doctest, unnamed": Case(
        files={
            "tests/test_shop.py": """\
def test_x():
    assert True
"""
        },
        change="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices)
""",
        base="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices) + 1
""",
        options=" --doctest-modules shop.py tests",
        tests=(),
    ),
    "doctest, reference": Case(
        files={
            "tests/test_shop.py": """\
def test_x():
    assert True
"""
        },
        change="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices)
""",
        has_reference=True,
        base="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(prices) + 1
""",
        fixed="""\
def total(prices):
    \"\"\"Add.

    >>> total([1, 2])
    3
    \"\"\"
    return sum(list(prices))
""",
        options=" --doctest-modules shop.py tests",
        tests=("shop.py::shop.total",),
    ),
}
