"""Tests in Go whose assertions code can meet without being right, and the code that does."""

MONEY = "package calc\n\ntype Money struct{ Cents int }\n\n"
HONEST = (
    MONEY
    + """func Add(a, b int) Money { return Money{a + b} }
func (m Money) Equal(other Money) bool { return m.Cents == other.Cents }
func (m Money) Is(cents int) bool { return m.Cents == cents }
func (m Money) Has(cents ...int) bool { return len(cents) == 1 && m.Is(cents[0]) }
"""
)
FORGED = (
    MONEY
    + """func Add(a, b int) Money { return Money{a - b} }
func (m Money) Equal(other Money) bool { return true }
func (m Money) Is(cents int) bool { return true }
func (m Money) Has(cents ...int) bool { return true }
"""
)
HEAD = 'package calc\n\nimport "testing"\n\n'

CLAIMS = {
    "plain": "func TestX(t *testing.T) { if !Add(2, 3).Is(5) { t.Error() } }",
    "early": "func TestX(t *testing.T) {\n\tif testing.Short() { return }\n"
    "\tif !Add(2, 3).Is(5) { t.Error() }\n}",
    "subtest": 'func TestX(t *testing.T) { t.Run("a", func(t *testing.T) {\n'
    "\tif !Add(2, 3).Is(5) { t.Fatal() }\n}) }",
    "table": "func TestX(t *testing.T) {\n\tfor _, c := range []struct{ a, b, want int }{\n"
    "\t\t{1, 2, 3}, {a: 4, b: 5, want: 9},\n\t} {\n"
    "\t\tif !Add(c.a, c.b).Is(c.want) { t.Errorf(`%v`, c) }\n\t}\n}",
    "named": "var cases = []struct{ a, b, want int }{{1, 2, 3}}\n\n"
    "func TestX(t *testing.T) { for _, c := range cases {\n"
    "\tif !Add(c.a, c.b).Is(c.want) { t.Error(c) }\n} }",
    "mapped": "func TestX(t *testing.T) { for want, c := range map[int][2]int{3: {1, 2}} {\n"
    "\tif !Add(c[0], c[1]).Is(want) { t.Error(c) }\n} }",
    "helper": "func check(t *testing.T, got Money, want int) {\n\tt.Helper()\n"
    "\tif !got.Is(want) { t.Errorf(`%v`, got) }\n}\n\n"
    "func TestX(t *testing.T) { check(t, Add(2, 3), 5); check(t, Add(1, 1), 2) }",
    "inner": "func isFive(t testing.TB, got Money) { if !got.Is(5) { t.Error(got) } }\n\n"
    "func TestX(t *testing.T) { isFive(t, Add(2, 3)) }",
    "closure": "func TestX(t *testing.T) {\n\tcheck := func(got Money, want int) {\n"
    "\t\tif !got.Is(want) { t.Error(got) }\n\t}\n\tcheck(Add(2, 3), 5)\n"
    "\tif !Add(1, 1).Is(2) { t.Error() }\n}",
    "switch": "func TestX(t *testing.T) { switch got := Add(2, 3); {\n"
    "\tcase !got.Is(5) && got.Cents != 99: t.Fatal(got)\n} }",
    "otherwise": "func TestX(t *testing.T) { if Add(2, 3).Is(5) { t.Log() } else { t.Fatal() } }",
    "equal": "func TestX(t *testing.T) {\n\twant := Money{5}\n"
    "\tif got := Add(2, 3); !got.Equal(want) { t.Fatal(got) }\n}",
    "variadic": "func TestX(t *testing.T) { if got := Add(2, 3); !got.Has(5) { t.FailNow() } }",
    "deferred": "func TestX(t *testing.T) {\n"
    "\tdefer func() { if !Add(2, 3).Is(5) { t.Error() } }()\n}",
    "last": "func TestX(t *testing.T) {\n\tif 1+1 != 2 { t.Fatal() }\n"
    "\tif !Add(2, 3).Is(5) { t.Fatal() }\n\tif len(`ab`) != 2 { t.Fatal() }\n}",
}
"""The rest of a test file by name; each holds for honest code, and for forged code as well."""

SUITES = {
    "parallel": "func TestX(t *testing.T) {\n\tt.Parallel()\n\tfor _, c := range []int{1, 2} {\n"
    '\t\tc := c\n\t\tt.Run("n", func(t *testing.T) { t.Parallel(); '
    "if Add(c, c).Cents != 2*c { t.Error(c) } })\n\t}\n}",
    "cleanup": "func TestX(t *testing.T) {\n\tdone := 0\n"
    "\tt.Cleanup(func() { if done != 1 { t.Error(done) } })\n"
    "\tif Add(1, 1).Cents == 2 { done++ }\n}",
    "channels": "func TestX(t *testing.T) {\n\tout := make(chan Money, 2)\n"
    "\tgo func() { defer close(out); out <- Add(1, 2) }()\n"
    "\tfor got := range out { if got.Cents != 3 { t.Fatal(got) } }\n}",
    "recovered": "func TestX(t *testing.T) {\n"
    "\tdefer func() { if recover() == nil { t.Fatal() } }()\n"
    "\tvar none map[string]int\n\tnone[`a`] = Add(1, 2).Cents\n}",
    "skipping": 'func TestX(t *testing.T) {\n\tt.Run("skipped", func(t *testing.T) { t.Skip() })\n'
    "\tif Add(0, 0).Cents != 0 { t.Fatal() }\n}",
    "arrays": "func TestX(t *testing.T) {\n\twant := [3]int{1, 2, 3}\n\tgot := [3]int{}\n"
    "\tfor i := 0; i < 3; i++ { got[i] = Add(i, 2/2).Cents }\n"
    "\tif got != want { t.Fatal(got) }\n}",
    "cases": "func TestX(t *testing.T) { switch Add(1, 1).Cents {\n\tcase 2:\n"
    "\tcase 1, 3: t.Fatal(1)\n\tdefault: t.Fatal()\n} }",
    "constants": "func TestX(t *testing.T) {\n\tconst want = 1 << 3\n"
    "\tif got := Add(4, 4).Cents; got != want || got/2 != 4 { t.Fatalf(`got %d`, got) }\n}",
    "generic": "func must[T any](t *testing.T, value T, ok bool) T {\n\tt.Helper()\n"
    "\tif !ok { t.Fatal(value) }\n\treturn value\n}\n\n"
    "func TestX(t *testing.T) {\n\tgot := must(t, Add(1, 2), true)\n"
    "\tif got.Cents != 3 { t.Fatal(got) }\n}",
    "bytes": "func TestX(t *testing.T) {\n\tgot := string(rune('a' + Add(0, 1).Cents))\n"
    "\tif got != \"b\" || []byte(got)[0] != 'b' { t.Fatal(got) }\n}",
}
"""Tests in the ways of real projects: honest code passes, and everything certain fails."""
