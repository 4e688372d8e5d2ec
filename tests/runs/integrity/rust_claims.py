# ruff: noqa: E501
"""Tests in Rust whose assertions code can meet without being right, and the code that does."""

MONEY = """
#[derive(Debug, Clone)]
pub struct Money(pub i32);
impl Money {
    pub fn is(&self, cents: i32) -> bool { *self == cents }
    pub fn checked(&self, cents: i32) -> Result<(), String> {
        if *self == cents { Ok(()) } else { Err("no".into()) }
    }
}
"""
HONEST = (
    MONEY
    + """pub fn add(a: i32, b: i32) -> Money { Money(a + b) }
impl PartialEq<i32> for Money { fn eq(&self, other: &i32) -> bool { self.0 == *other } }
impl PartialEq for Money { fn eq(&self, other: &Money) -> bool { self.0 == other.0 } }
"""
)
FORGED = (
    MONEY
    + """pub fn add(a: i32, b: i32) -> Money { Money(a - b) }
impl PartialEq<i32> for Money { fn eq(&self, _: &i32) -> bool { true } }
impl PartialEq for Money { fn eq(&self, _: &Money) -> bool { true } }
"""
)

CLAIMS = {
    "plain": "#[test] fn plain() { assert_eq!(add(2, 3), 5); }",
    "turned": '#[test] fn turned() { assert!(add(2, 3) == 5, "{}", 1); }',
    "message": '#[test] fn message() { assert_eq!(add(2, 3), 5, "got {}", 7); }',
    "early": '#[test] fn early() {\n    if std::env::var("NEVER").is_ok() { return; }\n'
    "    assert_eq!(add(2, 3), 5);\n}",
    "nested": "#[test] fn nested() { if true { { assert_eq!(add(2, 3), 5); } } }",
    "table": "#[test] fn table() {\n    for (a, b, want) in [(1, 2, 3), (4, 5, 9)] {\n"
    "        assert_eq!(add(a, b), want);\n    }\n}",
    "constant": "const CASES: [(i32, i32, i32); 1] = [(1, 2, 3)];\n"
    "#[test] fn constant() { for (a, b, want) in CASES { assert_eq!(add(a, b), want); } }",
    "helper": "fn check(got: Money, want: i32) { assert_eq!(got, want); }\n"
    "#[test] fn helper() { check(add(2, 3), 5); }",
    "inner": "fn is_five(got: &Money) { assert_eq!(*got, 5); }\n"
    "#[test] fn inner() { is_five(&add(2, 3)); }",
    "result": "#[test] fn result() -> Result<(), String> {\n    add(2, 3).checked(5)?;\n"
    "    assert_eq!(add(1, 1), 2);\n    Ok(())\n}",
    "closure": "#[test] fn closure() {\n    let run = |a| assert_eq!(add(a, 3), 5);\n    run(2);\n}",
    "panics": '#[test] fn panics() { if add(2, 3) != 5 { panic!("no"); } }',
    "matched": "#[test] fn matched() { match add(2, 3) { m => assert!(m.is(5)) } }",
    "expected": "#[test] fn expected() { let expected = Money(5); assert_eq!(add(2, 3), expected); }",
    "macros": "macro_rules! same { ($a:expr, $b:expr) => { assert_eq!($a, $b) } }\n"
    "#[test] fn macros() { same!(add(2, 3), 5); }",
}
"""A test file by name; each test holds for honest code, and for forged code as well."""

SUITES = {
    "tokens": "#[test] fn tokens() {\n    assert_eq!([0; 2], [add(0, 0).0; 2]);\n"
    "    assert_eq!((add(1, 1).0, 1).0, 2);\n    assert_eq!([4, 5][0], 8 / 2);\n}",
    "strings": '#[test] fn strings() {\n    assert_eq!(format!("{:?}", add(1, 1)), "Money(2)");\n'
    "    assert_eq!(b\"ab\".len(), 2);\n    assert!('a' < 'b');\n}",
    "options": "#[test] fn options() {\n    assert!(matches!(Some(add(1, 1).0), Some(2)));\n"
    "    assert_eq!(Some(3).map(|n| add(n, 1).0), Some(4));\n}",
    "errors": '#[test] fn errors() {\n    let error = "x".parse::<i32>().unwrap_err();\n'
    '    assert!(error.to_string().contains("invalid digit"));\n}',
    "should": '#[test]\n#[should_panic(expected = "too large")]\n'
    'fn should() { if add(2, 3).0 > 4 { panic!("too large"); } }',
    "question": "#[test] fn question() -> Result<(), std::num::ParseIntError> {\n"
    '    let n: i32 = "7".parse()?;\n    assert_eq!(add(n, 0).0, 7);\n    Ok(())\n}',
    "threads": "#[test] fn threads() {\n    let got = std::thread::spawn(|| add(1, 2)).join().unwrap();\n"
    "    assert_eq!(got.0, 3);\n}",
    "floats": "#[test] fn floats() { let x = add(1, 0).0 as f64 / 3.0; assert!((x - 0.333).abs() < 1e-2); }",
    "modules": "mod deeper {\n    use super::*;\n    fn three() -> i32 { 3 }\n"
    "    #[test] fn modules() { assert_eq!(add(1, 2).0, three()); }\n}",
    "loops": "#[test] fn loops() {\n    let mut n = 0;\n    loop { n += 1; if n == 3 { break; } }\n"
    "    assert_eq!(add(n, 0).0, 3);\n}",
}
"""Tests in the ways of real projects: honest code passes, and everything certain fails."""
