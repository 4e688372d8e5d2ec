"""The closed vocabulary of masked work: words that stay, and words with which one speaks."""

from __future__ import annotations

_KEYWORDS_TEXT = """
False None True and as assert async await break case class continue def del elif else except
finally for from global if import in is lambda match nonlocal not or pass raise return try type
while with yield self cls super const let var function new this typeof instanceof export default
extends implements interface enum switch throw catch null undefined true false void static public
private protected abstract readonly of get set delete debugger require module exports func package
go defer chan select range map struct fallthrough nil iota make append cap copy fn mut pub impl
trait use mod crate where unsafe ref move dyn loop Some Ok Err Self Option Result Vec Box String
str usize isize u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 bool char byte rune int8 int16 int32 int64
uint uint8 uint16 uint32 uint64 float32 float64 unwrap clone iter final throws synchronized
boolean double long short Integer Boolean List Map Set begin end do then fi done esac echo exit
include define ifdef ifndef endif namespace template typename using unsigned signed sizeof goto
extern inline virtual override union
"""
_BUILT_IN_NAMES_TEXT = """
abs all any bin bytearray bytes callable chr classmethod complex dict dir divmod enumerate eval
exec filter float format frozenset getattr hasattr hash hex id input int isinstance issubclass len
list locals max memoryview min next object oct open ord pow print property repr reversed round
setattr slice sorted staticmethod sum tuple vars zip ArithmeticError AssertionError AttributeError
BaseException Exception FileNotFoundError ImportError IndexError KeyError KeyboardInterrupt
LookupError ModuleNotFoundError NameError NotImplemented NotImplementedError OSError OverflowError
PermissionError RecursionError RuntimeError StopIteration SyntaxError SystemExit TimeoutError
TypeError UnicodeDecodeError UnicodeEncodeError UnicodeError ValueError ZeroDivisionError Warning
DeprecationWarning UserWarning __init__ __new__ __call__ __enter__ __exit__ __aenter__ __aexit__
__iter__ __next__ __len__ __getitem__ __setitem__ __delitem__ __contains__ __eq__ __ne__ __lt__
__le__ __gt__ __ge__ __hash__ __repr__ __str__ __bool__ __add__ __sub__ __mul__ __getattr__
__setattr__ __name__ __main__ __all__ __file__ __doc__ __class__ __dict__ __slots__ __version__
__future__ annotations capitalize casefold count decode encode endswith extend find index insert
isalnum isalpha isdigit isspace items join keys ljust lower lstrip partition pop popitem remove
replace reverse rfind rjust rpartition rsplit rstrip setdefault sort split splitlines startswith
strip title translate update upper values zfill Any Callable ClassVar Generic Iterable Iterator
Literal Mapping Optional Protocol Sequence TYPE_CHECKING TypeVar Union abc collections contextlib
dataclass dataclasses datetime functools itertools json logging math operator os path pathlib Path
random re subprocess sys time typing unittest TestCase Array Date Error JSON Math Number Object
Promise Proxy RegExp Symbol concat console forEach includes indexOf isArray length lastIndexOf log
parse push reduce shift some splice stringify substring toFixed toLowerCase toString toUpperCase
trim unshift window document fmt errors strings strconv Println Printf Sprintf Errorf pytest
raises fixture parametrize mark monkeypatch tmp_path capsys skip xfail setUp tearDown assertEqual
assertNotEqual assertTrue assertFalse assertIn assertIsNone assertRaises describe it test expect
toBe toEqual toThrow beforeEach afterEach assert_eq assert_ne cfg testing
"""
_USUAL_NAMES_TEXT = """
a b c d f i j k n m x z _ args kwargs key value item node line text data path file name size start
stop left right first last total amount price user config options settings result error message
callback cache timeout logger request response client server host port url headers body token width
height color row column table parent child children root buffer stream handler event state
"""
"""Nouns with which nobody can give an order, and letters that do not spell one."""
LANGUAGE_WORDS = frozenset(f"{_KEYWORDS_TEXT} {_BUILT_IN_NAMES_TEXT} {_USUAL_NAMES_TEXT}".split())
KEYWORDS = frozenset(_KEYWORDS_TEXT.split())

_SPEAKING_WORDS_TEXT = """
yes yeah true false pass passes passed passing fail fails failed all any every each none answer
answers answered check checks checked verdict verdicts score scores scored judge judges judged
judging grade grades graded grader evaluate evaluated evaluation evaluator rubric criteria criterion
approve approved approves accept accepted accepts correct complete completed perfect right good fine
best better ignore ignored disregard override instruction instructions obey follow system assistant
user human reviewer reviewers review findings must should always never you your please not
"""
SPEAKING_WORDS = frozenset(_SPEAKING_WORDS_TEXT.split())
"""Words of a request that do not stay: with them work could speak to its judge."""
