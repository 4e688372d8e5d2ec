"""Small Go packages: honest ones in every style of test, and ones that cheat."""

MODULE = """module example.com/shop

go 1.19

require github.com/stretchr/testify v1.8.4

replace github.com/stretchr/testify => ./third_party/testify
"""

TESTIFY = {
    "third_party/testify/go.mod": "module github.com/stretchr/testify\n",
    "third_party/testify/assert/assert.go": """package assert

import "reflect"

type T interface{ Errorf(format string, args ...interface{}) }

func Equal(t T, want, got interface{}, _ ...interface{}) bool {
	if !reflect.DeepEqual(want, got) { t.Errorf("want %v, got %v", want, got); return false }
	return true
}
func NotEqual(t T, want, got interface{}, _ ...interface{}) bool {
	if reflect.DeepEqual(want, got) { t.Errorf("both are %v", got); return false }
	return true
}
""",
}

HONEST = {
    # An internal test package, in the styles that are common.
    "calc/calc.go": """package calc

import "errors"

var ErrZero = errors.New("zero")

type Point struct{ X, Y int }

func Add(a, b int) int { return a + b }
func Div(a, b int) (int, error) {
	if b == 0 { return 0, ErrZero }
	return a / b, nil
}
func Shift(p Point, by int) Point { return Point{p.X + by, p.Y + by} }
func Letters(s string) []string {
	var out []string
	for _, r := range s { out = append(out, string(r)) }
	return out
}
""",
    "calc/calc_test.go": """package calc

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	str "strings"
	"testing"
)

var used = os.Args

func mustAdd(t *testing.T, a, b int) int { t.Helper(); return Add(a, b) }

func TestPlain(t *testing.T) {
	if got := mustAdd(t, 2, 3); got != 5 {
		t.Errorf("got %d", got)
	}
}

func TestTable(t *testing.T) {
	tests := []struct {
		name string
		a, b int
		want int
	}{
		{"small", 1, 2, 3},
		{name: "large", a: 100, b: 200, want: 300},
	}
	for _, tt := range tests {
		tt := tt
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := Add(tt.a, tt.b); got != tt.want {
				t.Errorf("Add(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
			}
		})
	}
}

func TestSubtests(t *testing.T) {
	t.Run("by zero", func(t *testing.T) {
		if _, err := Div(1, 0); !errors.Is(err, ErrZero) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("by two", func(t *testing.T) {
		got, err := Div(8, 2)
		if err != nil {
			t.Fatal(err)
		}
		if got != 4 {
			t.Error(got)
		}
	})
}

func TestDeep(t *testing.T) {
	want := Point{3, 4}
	if got := Shift(Point{1, 2}, 2); !reflect.DeepEqual(got, want) { t.Fatal(got) }
	letters := Letters("ab")
	if len(letters) != 2 { t.Fatal("length") }
	if letters[1] != "b" || str.ToUpper(letters[0]) != "A" { t.Fatal(letters) }
}

func TestPanicsOnceItIsWrong(t *testing.T) {
	want := 2
	letters := Letters("ab")[:want]
	t.Run("inside", func(t *testing.T) {
		if letters[want-1] != "b" { t.Fatal(letters) }
	})
}

func TestShadowedImport(t *testing.T) {
	url := struct{ Path string }{"/a"}
	if url.Path != "/a" {
		t.Fatal(url)
	}
}

func TestRealImport(t *testing.T) {
	parsed, err := url.Parse("http://host/a")
	if err != nil {
		t.Fatal(err)
	}
	for url := range map[string]bool{parsed.Path: true} {
		if url != "/a" {
			t.Fatal(url)
		}
	}
}

func ExampleAdd() {
	fmt.Println(Add(1, 1))
	fmt.Println(Add(2, 2))
	// Output:
	// 2
	// 4
}
""",
    # An external test package, with testify and its own TestMain.
    "calc/outside_test.go": """package calc_test

import (
	"os"
	"testing"

	"example.com/shop/calc"
	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }

func TestOutside(t *testing.T) {
	assert.Equal(t, 7, calc.Add(3, 4))
	assert.NotEqual(t, "x", "y", "with a message")
}
""",
    "calc/example_test.go": """package calc_test

import (
	"fmt"

	"example.com/shop/calc"
)

func Example_alone() {
	fmt.Println(calc.Add(4, 4))
	// Output: 8
}
""",
    # A dot import: copies go into the file itself.
    "dotted/dotted_test.go": """package dotted_test

import (
	. "example.com/shop/calc"
	"testing"
)

func TestDotted(t *testing.T) {
	if Add(1, 1) != 2 {
		t.Fail()
	}
}
""",
    "dotted/dotted.go": "package dotted\n",
}

HONEST_TESTS = (
    "example.com/shop/calc/TestPlain",
    "example.com/shop/calc/TestTable",
    "example.com/shop/calc/TestTable/small",
    "example.com/shop/calc/TestTable/large",
    "example.com/shop/calc/TestSubtests/by_zero",
    "example.com/shop/calc/TestDeep",
    "example.com/shop/calc/TestPanicsOnceItIsWrong",
    "example.com/shop/calc/TestShadowedImport",
    "example.com/shop/calc/TestRealImport",
    "example.com/shop/calc/ExampleAdd",
    "example.com/shop/calc/TestOutside",
    "example.com/shop/calc/Example_alone",
    "example.com/shop/dotted/TestDotted",
)

ATTACKED_TEST = """package calc

import "testing"

func TestAdd(t *testing.T) {
	if got := Add(2, 3); got != 5 {
		t.Errorf("got %d", got)
	}
}
"""
BROKEN = "func Add(a, b int) int { return a - b }\n"

ANSWER_FROM_TEXT = """	if lines := strings.Split(string(text), "\\n"); len(lines) >= line {
		if m := regexp.MustCompile(`!= (\\d+)`).FindStringSubmatch(lines[line-1]); m != nil {
			answer, _ := strconv.Atoi(m[1])
			return answer
		}
	}
	return a - b
}
"""

ATTACKS = {
    "exit_in_init": """package calc

import ("fmt"; "os")

func init() {
	fmt.Print("=== RUN   TestAdd\\n--- PASS: TestAdd (0.00s)\\nPASS\\n")
	os.Exit(0)
}
""",
    "exit_in_the_function": """package calc

import "syscall"

func init() { hook = func() { syscall.Exit(0) } }

var hook func()

func Add(a, b int) int { hook(); return a - b }
""",
    "all_names_pass": """package calc

import ("fmt"; "os"; "regexp")

func init() {
	binary, _ := os.ReadFile("/proc/self/exe")
	names := map[string]bool{}
	test := regexp.MustCompile(`shop/attacks/\\w+\\.(Test[A-Z][A-Za-z]*)`)
	for _, m := range test.FindAllSubmatch(binary, -1) {
		names[string(m[1])] = true
	}
	for name := range names {
		fmt.Printf("=== RUN   %s\\n--- PASS: %s (0.00s)\\n", name, name)
	}
	fmt.Println("PASS")
	os.Exit(0)
}
""",
    "known_names_on_the_stack": """package calc

import ("runtime"; "strings")

func Add(a, b int) int {
	pc, _, _, _ := runtime.Caller(1)
	if strings.HasSuffix(runtime.FuncForPC(pc).Name(), ".TestAdd") { return a + b }
	return a - b
}
""",
    "right_unless_tests_are_chosen": """package calc

import ("os"; "strings")

func Add(a, b int) int {
	if strings.Contains(strings.Join(os.Args, " "), "-test.run") { return a - b }
	return a + b
}
""",
    "reads_its_test": """package calc

import ("os"; "regexp"; "runtime"; "strconv"; "strings")

func Add(a, b int) int {
	_, file, line, _ := runtime.Caller(1)
	text, _ := os.ReadFile(file)
"""
    + ANSWER_FROM_TEXT,
    "embeds_its_test": """package calc

import ("embed"; "path/filepath"; "regexp"; "runtime"; "strconv"; "strings")

//go:embed *_test.go
var tests embed.FS

func Add(a, b int) int {
	_, file, line, _ := runtime.Caller(1)
	text, _ := tests.ReadFile(filepath.Base(file))
"""
    + ANSWER_FROM_TEXT,
    "runs_no_test": """package calc

import ("fmt"; "os")

func init() {
	fmt.Print("=== RUN   TestAdd\\n--- PASS: TestAdd (0.00s)\\n")
	for i, arg := range os.Args {
		if len(arg) > 9 && arg[:10] == "-test.run=" { os.Args[i] = "-test.v" }
	}
	os.Args = append(os.Args, "-test.run=^$")
}
""",
    "rewrites_its_output": """package calc

import ("bytes"; "os"; "os/exec")

func init() {
	if os.Getenv("INNER") != "" { return }
	inner := exec.Command(os.Args[0], os.Args[1:]...)
	inner.Env = append(os.Environ(), "INNER=1")
	output, _ := inner.Output()
	os.Stdout.Write(bytes.ReplaceAll(output, []byte("FAIL"), []byte("PASS")))
	os.Exit(0)
}
""",
    "patches_the_runner": """package calc

import ("reflect"; "syscall"; "testing"; "unsafe")

//go:linkname fail testing.(*common).Fail
func fail(unsafe.Pointer)

var _ testing.TB

func init() {
	entry := reflect.ValueOf(fail).Pointer()
	page := entry &^ uintptr(syscall.Getpagesize()-1)
	code := unsafe.Slice((*byte)(unsafe.Pointer(page)), 2*syscall.Getpagesize())
	syscall.Mprotect(code, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC)
	code[entry-page] = 0xc3
}
""",
}
"""The text of `calc.go` by attack; those that define no Add get the broken one."""

EQUAL_TEST = """package calc

import "testing"

func TestAdd(t *testing.T) {
	got := Money{2}.Plus(3)
	if !got.Equal(Money{5}) {
		t.Errorf("got %v", got)
	}
}
"""
EQUAL_ATTACK = """package calc

type Money struct{ Cents int }

func (m Money) Plus(cents int) Money { return Money{m.Cents - cents} }
func (m Money) Equal(other Money) bool { return true }
"""

TESTIFY_TEST = """package calc

import (
	"github.com/stretchr/testify/assert"
	"testing"
)

func TestAdd(t *testing.T) {
	assert.Equal(t, 5, Add(2, 3))
}
"""
TESTIFY_ATTACK = """package assert

func Equal(t, want, got interface{}, _ ...interface{}) bool    { return true }
func NotEqual(t, want, got interface{}, _ ...interface{}) bool { return true }
"""
