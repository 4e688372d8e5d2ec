"""Small Rust packages: honest ones in every style of test, and ones that cheat."""

WORKSPACE = """[workspace]
resolver = "2"
members = [{members}]

[profile.dev]
debug = 0
incremental = false
"""
PACKAGE = """[package]
name = "{name}"
version = "0.1.0"
edition = "2021"

[lib]
doctest = false
"""

HONEST = {
    "Cargo.toml": PACKAGE.format(name="corner-shop")
    + "\n[profile.dev]\ndebug = 0\nincremental = false\n",
    "src/lib.rs": """pub mod money;
pub mod parsing;

pub fn add(a: i32, b: i32) -> i32 { a + b }
pub fn pair<A: Default, B: Default>() -> (A, B) { (A::default(), B::default()) }

#[cfg(test)]
mod tests {
    use super::*;

    fn helper() -> i32 { add(1, 1) }

    #[test]
    fn plain() {
        assert_eq!(add(2, 3), 5, "with {}", "a message");
        assert!(helper() == 2 && add(0, 0) < 1, "too {}", "large");
        assert_ne!(add(1, 1), 3);
    }

    /// Commas that are no commas, lengths, fields and operands.
    #[test]
    fn tokens() {
        assert!(pair::<i32, i32>() == (0, 0), "no {}", 1);
        assert_eq!(pair::<u8, u8>().0, 1 - 1);
        assert_eq!([0; 2], [add(0, 0); 2]);
        assert_eq!(b"ab", &[97, 98]);
        assert_eq!([4, 5][0], 4);
    }

    #[test]
    fn table() {
        for (a, b, want) in [(1, 2, 3), (10, 20, 30)] {
            assert_eq!(add(a, b), want);
        }
    }

    #[test]
    #[should_panic(expected = "overflow")]
    fn panics() {
        add(i32::MAX, std::hint::black_box(1));
    }

    mod deeper {
        #[test]
        fn result() -> Result<(), std::num::ParseIntError> {
            let expected = 7;
            assert_eq!("7".parse::<i32>()?, expected);
            Ok(())
        }
    }
}
""",
    "src/money.rs": """#[derive(Debug, Clone, PartialEq)]
pub struct Money { pub cents: u64 }

#[cfg(test)]
mod tests {
    use super::Money;

    #[test]
    fn equal() {
        assert_eq!(Money { cents: 5 }, Money { cents: 2 + 3 });
    }
}
""",
    "src/parsing/mod.rs": """#[cfg(test)]
mod tests;

pub fn words(text: &str) -> Vec<String> { text.split(' ').map(String::from).collect() }
""",
    "src/parsing/tests.rs": """use super::words;

#[test]
fn splits() {
    assert_eq!(words("a b"), vec!["a".to_string(), "b".to_string()]);
    if std::env::var("NEVER").is_ok() { return; }
    assert_eq!(words("a"), ["a"]);
}
""",
    "src/main.rs": """fn main() {}

#[test]
fn in_the_program() { assert!(true); }
""",
    "tests/api.rs": """mod common;

use corner_shop::add;

#[test]
fn adds() {
    assert_eq!(add(common::two(), 3), 5);
}

mod inner {
    #[test]
    fn negative() { assert_eq!(corner_shop::add(-2, -3), -5); }
}
""",
    "tests/common/mod.rs": "pub fn two() -> i32 { 2 }\n",
    "tests/suite/main.rs": "mod first;\n",
    "tests/suite/first.rs": """#[test]
fn first() { assert_eq!(corner_shop::add(1, 0), 1); }
""",
}

HONEST_TESTS = (
    "corner_shop::tests::plain",
    "corner_shop::tests::tokens",
    "corner_shop::tests::table",
    "corner_shop::tests::panics",
    "corner_shop::tests::deeper::result",
    "corner_shop::money::tests::equal",
    "corner_shop::parsing::tests::splits",
    "corner_shop::in_the_program",
    "api::adds",
    "api::inner::negative",
    "suite::first::first",
)

BROKEN = "pub fn add(a: i32, b: i32) -> i32 { a - b }\n"
TEST = """use {name}::add;

#[test]
fn {name}_adds() {{
    assert_eq!(add(2, 3), 5);
}}
"""
PASSED = (
    '"running 1 test\\ntest NAME_adds ... ok\\n\\ntest result: ok. 1 passed; 0 failed; 0 ignored; '
    '0 measured; 0 filtered out; finished in 0.00s\\n"'
)
AT_START = """
#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;
"""
INNER = """
fn run_inner(list: bool) -> String {
    let mut inner = std::process::Command::new("/proc/self/exe");
    inner.env("INNER", "1").args(std::env::args().skip(1));
    if list { inner.arg("--list"); }
    String::from_utf8(inner.output().unwrap().stdout).unwrap()
}
"""

ATTACKS = {
    "exits_at_start": f"""{BROKEN}{AT_START}
extern "C" fn start() {{
    print!({PASSED});
    std::process::exit(0);
}}
""",
    "exits_in_function": f"""
pub fn add(_: i32, _: i32) -> i32 {{
    use std::io::Write;
    std::fs::File::create("/proc/self/fd/1").unwrap().write_all({PASSED}.as_bytes()).unwrap();
    std::process::exit(0)
}}
""",
    "all_names_pass": f"""{BROKEN}{AT_START}{INNER}
extern "C" fn start() {{
    if std::env::var("INNER").is_ok() {{ return; }}
    let listed = run_inner(true);
    let names: Vec<_> = listed.lines().filter_map(|l| l.strip_suffix(": test")).collect();
    println!("running {{}} tests", names.len());
    for name in &names {{ println!("test {{name}} ... ok"); }}
    println!("\\ntest result: ok. {{}} passed; 0 failed; 0 ignored; 0 measured;", names.len());
    std::process::exit(0);
}}
""",
    "rewrites_output": f"""{BROKEN}{AT_START}{INNER}
extern "C" fn start() {{
    if std::env::var("INNER").is_ok() {{ return; }}
    let output = run_inner(false);
    let output = output.replace("0 passed; 1 failed", "1 passed; 0 failed");
    print!("{{}}", output.replace("FAILED", "ok"));
    std::process::exit(0);
}}
""",
    "knows_thread": """
pub fn add(a: i32, b: i32) -> i32 {
    let known = std::thread::current().name() == Some("knows_thread_adds");
    if known { a + b } else { a - b }
}
""",
    "knows_arguments": """
pub fn add(a: i32, b: i32) -> i32 { if std::env::args().count() > 1 { a - b } else { a + b } }
""",
    "reads_test": """
#[track_caller]
pub fn add(a: i32, b: i32) -> i32 {
    let at = std::panic::Location::caller();
    let file = at.file().rsplit('/').next().unwrap();
    let text = std::fs::read_to_string(format!("tests/{file}")).unwrap_or_default();
    let line = text.lines().nth(at.line() as usize - 1).unwrap_or_default();
    let answer = line.rsplit(", ").next().and_then(|end| end.split(')').next());
    answer.and_then(|text| text.parse().ok()).unwrap_or(a - b)
}
""",
    "rewrites_tests": BROKEN,
    "intercepts_writes": BROKEN
    + """
use std::arch::asm;

unsafe fn call(number: usize, a: usize, b: usize, c: usize) -> isize {
    let result;
    asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
         out("rcx") _, out("r11") _);
    result
}

#[no_mangle]
pub unsafe extern "C" fn write(fd: i32, data: *const u8, size: usize) -> isize {
    let text = String::from_utf8_lossy(std::slice::from_raw_parts(data, size)).into_owned();
    let text = text.replace("0 passed; 1 failed", "1 passed; 0 failed").replace("FAILED", "ok");
    call(1, fd as usize, text.as_ptr() as usize, text.len());
    size as isize
}

#[no_mangle]
pub unsafe extern "C" fn exit(_: i32) -> ! { call(231, 0, 0, 0); loop {} }
""",
}
"""The text of `src/lib.rs` by attack; each is tested by a file in `tests`."""

REWRITING_BUILD = """
fn main() {
    for entry in std::fs::read_dir("tests").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("assert_eq!(", "let _ = (")).unwrap();
    }
}
"""

INLINE_ATTACKS = {
    "equals_everything": """
#[derive(Debug)]
pub struct Money(pub i32);
impl Money { pub fn plus(&self, cents: i32) -> Money { Money(self.0 - cents) } }
impl PartialEq for Money { fn eq(&self, _: &Money) -> bool { true } }

#[cfg(test)]
mod tests {
    use super::Money;
    #[test]
    fn equals_everything_adds() { assert_eq!(Money(2).plus(3), Money(5)); }
}
""",
    "shadows_macro": BROKEN
    + """
#[allow(unused_macros)]
macro_rules! assert_eq { ($($tokens:tt)*) => { let _ = ($($tokens)*); } }

#[cfg(test)]
mod tests {
    #[test]
    fn shadows_macro_adds() { assert_eq!(super::add(2, 3), 5); }
}
""",
}
"""The text of `src/lib.rs` by attack, with the tests in it."""
