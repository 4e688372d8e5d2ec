"""What command lines do, told from their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process.command_analysis import _analyse_cached_line, analyse_command
from patience import takes

WRAPPED = """
pytest -q
python -m pytest -q
python3 -X dev -m pytest
python3.12 -W error -m pytest --tb=short
.venv/bin/python -m pytest -rA --no-header
./venv/bin/pytest -x
cd backend && pytest -vv
cd /srv/app; PYTHONPATH=. pytest
FOO=1 BAR="a b" pytest -p no:cacheprovider
env -u HOME FOO=1 pytest
sudo -u app pytest -n 4
time pytest --color=no
timeout 60 pytest --maxfail=1
timeout -k 5 60s pytest --maxfail 1
nice -n 10 pytest
stdbuf -oL pytest
xvfb-run -a pytest
poetry run pytest
uv run pytest
uv run --with hypothesis -m pytest
uv run python -m pytest --durations=10
pipenv run pytest
hatch run pytest
conda run -n dev --no-capture-output pytest
coverage run -m pytest
python -m coverage run --source src -m pytest
docker exec -it web pytest
docker compose run --rm -e CI=1 web pytest
docker-compose -f ci.yml exec -T web pytest -q
bash -lc "cd app && pytest -q"
sh -c 'pytest -q'
bash -lc cd app && pytest -q
["bash", "-lc", "cd app && pytest -q"]
["pytest", "-q"]
bash -c 'bash -c "pytest -q"'
dotenv -- pytest
(source .venv/bin/activate && pytest)
{ pytest; }
pytest .
pytest ./
pytest 2>&1
pytest -q > /tmp/out.txt 2>&1
pytest # don't stop here
"""


@pytest.mark.parametrize("line", [*WRAPPED.strip().splitlines(), "pytest \\\n  -q", "\npytest\n"])
def test_wrappers_flags_and_folders_do_not_change_what_is_checked(line: str) -> None:
    doing = analyse_command(line)
    assert (doing.checks, doing.target, doing.masked) == (("pytest",), "pytest", False)


TARGETS = {
    "python -m pytest tests/ -q | tail -20": "pytest tests",
    "pytest tests -x --tb=short": "pytest tests",
    "pytest b/test_b.py ./a/test_a.py -q": "pytest a/test_a.py b/test_b.py",
    "pytest 'tests/test_a.py::TestA::test_b[x-1]'": "pytest 'tests/test_a.py::TestA::test_b[x-1]'",
    'pytest -m "not slow" -v': "pytest -m 'not slow'",
    "pytest -k parse tests/": "pytest -k parse tests",
    "pytest tests -kparse": "pytest -k parse tests",
    "pytest --lf": "pytest --lf",
    "python3 -m unittest discover -s tests -v": "unittest -s tests",
    "python -m unittest tests.test_money": "unittest tests.test_money",
    "tox -e py311 -- -q": "tox -e py311",
    "python manage.py test shop.tests --settings=conf -v 2": "manage.py test shop.tests",
    "./tests/runtests.py lookup --parallel 4": "runtests.py lookup",
    "npm test": "npm test",
    "npm run test -- --coverage src/a.test.ts": "npm test src/a.test.ts",
    "npm run lint --silent": "npm run lint",
    "cd packages/ui && npm run build 2>&1 | tail -5": "npm run build",
    "pnpm run typecheck": "pnpm typecheck",
    "pnpm --filter @app/web test:unit": "pnpm test:unit --filter=@app/web",
    "yarn jest src/a.test.js --silent": "jest src/a.test.js",
    "yarn workspace web test": "yarn workspace web test",
    "bun test": "bun test",
    "bun run test": "bun run test",
    "npx jest -t 'adds tax' --verbose": "jest -t 'adds tax'",
    "npx --yes vitest@2 run src/a.test.ts --reporter=dot": "vitest src/a.test.ts",
    "pnpm exec playwright test e2e/login.spec.ts": "playwright test e2e/login.spec.ts",
    "node --test": "node --test",
    "npx tsc --noEmit -p tsconfig.build.json": "tsc -p tsconfig.build.json",
    "go test ./... -count=1": "go test ./...",
    "go test -race -run TestSync ./internal/sync": "go test -run TestSync internal/sync",
    "GOOS=windows go build ./...": "go build ./...",
    "cargo t -p core -- --nocapture": "cargo test -p core",
    "cargo +nightly build --release": "cargo build",
    "php artisan test --parallel": "php artisan test",
    "mvn test -pl core -am": "mvn -pl core test",
    "cargo clippy --all-targets -- -D warnings": "cargo clippy",
    "./gradlew clean :app:testDebug --tests 'A.b*' --info": "gradle '--tests=A.b*' :app:testDebug",
    "mvn -q -Dtest=MoneyTest test": "mvn -Dtest=MoneyTest test",
    "bundle exec rspec spec/a_spec.rb:12 --format doc": "rspec spec/a_spec.rb:12",
    "vendor/bin/phpunit --filter testTax": "phpunit --filter=testTax",
    "ctest --output-on-failure -j8 -R money": "ctest -R money",
    "make -j4": "make",
    "make -j 4 test VERBOSE=1": "make test",
    "cmake --build build -j": "cmake --build=build",
    "dotnet test Shop.sln --no-build": "dotnet test Shop.sln",
    "ruff check . --output-format=concise": "ruff check",
    "ruff format --check src": "ruff format --check src",
    "black --check -l 100 src/": "black --check src",
    "mypy src --strict": "mypy src",
    "uvx ty check": "ty check",
    "prettier -c src": "prettier --check src",
    "gcc -Wall -o app main.c util.c -lm": "gcc main.c util.c",
    "python -m py_compile a.py && echo ok": "py_compile a.py",
    "pre-commit run --all-files": "pre-commit run",
    "python reproduce.py": "python reproduce.py",
    "python ./tests/x.py --fast": "python tests/x.py",
    "node test.js": "node test.js",
    "./test.sh": "./test.sh",
    "bash scripts/run_tests.sh unit": "bash scripts/run_tests.sh unit",
    "python -m shop.tests.test_money": "python -m shop.tests.test_money",
    "bin/test sympy/core": "bin/test sympy/core",
    "ruff check src && mypy src && pytest -q": "ruff check src && mypy src && pytest",
    "pytest a.py; pytest a.py -q": "pytest a.py",
    "git ls-files '*.py' | xargs ruff check": "ruff check",
    "if pytest -q; then echo ok; fi": "pytest",
    "powershell -c 'cd a; python test_b.py'": "python test_b.py",
}


@pytest.mark.parametrize(("line", "target"), TARGETS.items())
def test_a_target_says_what_is_checked_and_nothing_else(line: str, target: str) -> None:
    doing = analyse_command(line)
    assert doing.target == target
    assert doing.checks
    assert analyse_command(target).target == target
    assert analyse_command(target).checks == doing.checks


NO_CHECKS = """
pytest --version
pytest --collect-only -q
npm install
npm ci
npm run dev
npm run test:watch
ruff format src
black src
prettier --write src
python -c "import shop"
python - <<'EOF'
python fix_tests.py
python train.py
python latest.py
go run main.go
cargo run
cargo fmt
mvn clean
make clean
gcc --version
cat tests/test_a.py
grep -rn pytest .
echo pytest
git commit -m "make test pass"
git stash; git status
rg 'npm test' README.md
"""


@pytest.mark.parametrize("line", NO_CHECKS.strip().splitlines())
def test_what_only_looks_like_a_check_is_none(line: str) -> None:
    doing = analyse_command(line)
    assert (doing.checks, doing.target, doing.masked) == ((), "", False)


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("pytest && echo ok", False),
        ("cd a && pytest -q; ", False),
        ("pytest || exit 1", False),
        ("pytest -q\n", False),
        ("set -o pipefail; pytest | tee log", False),
        ("set -e\nmypy src\npytest", False),
        ("pytest; code=$?; cat log; exit $code", False),
        ("pytest | tail -5; exit ${PIPESTATUS[0]}", False),
        ("find tests -name 'test_*.py' | xargs pytest", False),
        ("pytest 2>&1 | tail -20", True),
        ("(cd a && pytest) | tail", True),
        ("pytest |& grep FAILED", True),
        ("pytest || true", True),
        ("pytest && deploy || echo failed", True),
        ("pytest; true", True),
        ("pytest; echo done", True),
        ("pytest; mypy src", True),
        ("pytest &", True),
        ("pytest > log 2>&1 & sleep 5", True),
        ("! pytest", True),
        ("for f in a b; do pytest $f; done", True),
        ("if pytest; then echo ok; fi", True),
        ("echo $(pytest -q)", True),
        ("bash -c 'pytest | tail'", True),
        ("bash -c 'pytest' | tail", True),
    ],
)
def test_masked_means_that_exit_code_0_does_not_say_passed(line: str, masked: bool) -> None:
    doing = analyse_command(line)
    assert doing.checks
    assert doing.masked is masked


def test_programs_come_in_order_without_paths_and_wrappers() -> None:
    line = "cd a && sudo /usr/bin/git pull; X=$(./scripts/rev.sh) uv run .venv/bin/pytest | tail"
    assert analyse_command(line).programs == ("cd", "git", "rev.sh", "pytest", "tail")


def test_the_projects_own_commands_are_checks_however_they_are_called() -> None:
    own = ("cd app && ./dev verify --strict", "bazel run //lint")
    doing = analyse_command("cd app && timeout 60 ./dev verify --strict -v parser | tail", own)
    assert (doing.checks, doing.target, doing.masked) == (
        ("dev",),
        "./dev verify --strict parser",
        True,
    )
    assert analyse_command(doing.target, own).target == doing.target
    assert analyse_command("./dev serve", own).checks == ()
    assert analyse_command("cd app", own).checks == ()
    assert analyse_command("./dev verify --strict").checks == ()


def test_a_very_long_target_is_told_by_its_digest_and_stays_the_same() -> None:
    names = " ".join(f"tests/test_{number}.py" for number in range(500))
    doing = analyse_command(f"pytest {names}")
    assert len(doing.target) < 100
    assert analyse_command(doing.target).target == doing.target
    assert analyse_command(f"pytest {names} tests/more.py").target != doing.target


WORDS = """
pytest -k 'a b' " ' \\ $( ` ) ( && || | ; & > >> < << <<EOF EOF <<< 2>&1 sed -i python -c -m bash
-lc {} = - a.py tests/ test_a.py npm run test cd .. git checkout -- find -exec \\; xargs env A=1
docker compose -- @ make all -C [ ] # ! if then do done uv tar x rm ./ / . ~ * é cmake --build
--lf yarn workspace hatch --test node manage.py runtests.py cargo fmt --check black mvn -Dtest=a
gcc a.c t ci jest -t task deno coverage eval su cmd /c powershell nix-shell --run dotenv command
"""
PIECES = st.sampled_from([*WORDS.split(), "\n"])
LINES = st.text() | st.lists(PIECES, max_size=25).map(" ".join) | st.lists(PIECES).map("".join)


@given(LINES, st.lists(LINES, max_size=2).map(tuple))
def test_any_text_is_read_without_a_fault_and_always_alike(line: str, own: tuple[str, ...]) -> None:
    doing = analyse_command(line, own)
    _analyse_cached_line.cache_clear()
    assert doing == analyse_command(line, own)
    assert bool(doing.checks) == bool(doing.target)
    assert doing.writes or not doing.written


@given(LINES)
def test_a_target_names_itself(line: str) -> None:
    doing = analyse_command(line)
    again = analyse_command(doing.target)
    assert (again.target, again.checks) == (doing.target, doing.checks)


@pytest.mark.parametrize(
    "piece",
    ["a", " ", "'", '"', "\\", "$(", "`", "(", "<<a ", "<<A\n", "<< x\n", "a|", "\n", "open(",
     "$((", "a='", "1", "> ", "-", "# ", "\r ", "${", "'\"", "$('", "\"$(", "p.write_text(",
     "+++ b/x\n", "pytest;", "make&&", "> a ", "do ", "bash -c '", "|| make ", "$(make "],
)  # fmt: skip
def test_a_megabyte_of_anything_takes_no_time(piece: str) -> None:
    def read(number: int) -> None:
        analyse_command(piece * (1_000_000 // len(piece) + number))
        analyse_command(f"python - <<'EOF'\n{piece * (100_000 + number)}\nEOF")

    assert takes(read, 2) < 2
