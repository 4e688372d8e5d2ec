"""The tools that check the work, and which of their options say what is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from closeloop.records.record import Record


class ShellTool(Record):
    """A tool that tests, builds, lints or type-checks."""

    name: str
    kind: str = "plain"
    """`tasks` are named by the project and `scripts` too, `goals` by the build tool; `sources` must
    be among its words; a `formatter` checks only when told to."""
    keep: frozenset[str] = frozenset()
    """Options that say what is checked, kept with their value."""
    flags: frozenset[str] = frozenset()
    """Options that say what is checked and have no value."""
    drop: frozenset[str] = frozenset()
    """Options left out together with the word after them."""
    needs: frozenset[str] = frozenset()
    """Without one of these options it does not check."""
    subs: Mapping[str, str] | None = None
    """First words that make it a check, with their full names; None where it always is one."""
    skip: frozenset[str] = frozenset()
    """Words that say nothing."""


# `pytest=py.test` is another name of pytest; `test/t` a short form of a first word.
_TOOL_TABLE = """
pytest pytest=py.test pytest=pytest-3
    keep -k -m --deselect --ignore
    flags --lf --last-failed --sw --doctest-modules
    drop -n -p -o -c -W -r --tb --maxfail --durations --timeout --rootdir --junitxml --junit-xml
    drop --cov --cov-report --cov-config --color --log-level --log-cli-level --basetemp --ds --dist
    drop --confcutdir --numprocesses --import-mode --capture --override-ini --seed --show-capture
unittest trial nose2 nosetests stestr
    keep -k -s -p -t
    drop -j
    skip discover
tox
    keep -e -m
    drop -c -p --parallel --workdir
    skip run
nox
    keep -s -t -k -e --session --sessions
    drop -f -p
py_compile compileall doctest
    drop -j -o
jest vitest ava jasmine karma tap
    keep -t --testNamePattern --testPathPattern --testPathPatterns --project --selectProjects -m
    keep --match
    drop -c --config -w --maxWorkers --reporter --reporters --testTimeout --timeout --bail --env
    drop --coverageReporters --environment --browser --pool
    skip run start
mocha
    keep -g --grep -f --fgrep
    drop -R --reporter -r --require -t --timeout --config --loader
playwright
    subs test
    keep -g --grep --project
    drop -c --config --reporter --workers -j
cypress
    subs run
    keep --spec
    drop --browser --config
go
    subs test build vet
    keep -run -bench -tags
    drop -count -timeout -parallel -p -cpu -o -coverprofile -covermode -coverpkg -mod -ldflags
    drop -gcflags -C -fuzz -fuzztime -benchtime
gotestsum
    drop --format -f --junitfile
golangci-lint
    subs run
    drop -c --config --timeout --new-from-rev --out-format -E --enable -D --disable --default
cargo
    subs test/t build/b check/c clippy nextest miri fmt
    keep -p --package --test --bin --example --features -E
    flags --lib --workspace --all
    drop -j --jobs --target --target-dir --manifest-path --profile --color --message-format
    drop --test-threads --config -Z -W -D -A
    skip run
staticcheck revive hadolint yamllint actionlint markdownlint cppcheck clang-tidy bandit vulture
    drop -c --config
mvn mvn=mvnw mvn=mvnd
    kind goals
    keep -Dtest -Dit.test -pl --projects
    drop -f -P -s -T
gradle gradle=gradlew
    kind goals
    keep --tests -p --project-dir -x
    drop -I --init-script --max-workers
sbt lein mill ant
    kind goals
rspec
    keep -e --example -t --tag
    drop -f --format -r -o --seed -I
phpunit pest paratest
    keep --filter --group --testsuite
    drop -c --configuration -d
phpstan psalm
    drop -c --configuration -l --level --memory-limit
    skip analyse analyze
rubocop standardrb
    keep --only
    drop -f --format -c --config
ctest
    keep -R -L -E
    drop -j --parallel --timeout -C --test-dir --preset
make make=gmake ninja just task invoke invoke=inv rake rails mise moon turbo nx lerna gulp scons
    kind tasks
    keep -C --directory --filter --scope -p --projects --project --target
    drop -j -f --file --justfile -l -o --jobs --concurrency --parallel
    skip run run-many affected
npm pnpm yarn bun composer hatch pdm rye pixi poe deno
    kind scripts
    keep -w --workspace --filter -F --prefix -C --dir --cwd -t --grep --test-name-pattern
    flags -r --recursive --workspaces
    drop --reporter --loglevel -e --env --config --timeout --workspace-concurrency --outdir
bazel bazelisk buck2
    subs test build
    keep --test_filter
    drop --config -c --jobs
dotnet
    subs test build format msbuild
    keep --filter --project
    drop -c --configuration -v --verbosity --logger -f --framework -o -r
swift
    subs test build
    keep --filter --target --product
    drop -c --configuration -j
xcodebuild
    keep -scheme -only-testing
    drop -destination -project -workspace -sdk
mix
    subs test compile credo dialyzer format
    keep --only
    drop --seed --max-failures
zig
    subs build test fmt
stack cabal dune lake spago nimble gleam crystal rebar3 forge hardhat anchor truffle pants detox opa
    subs test build check compile spec runtest eunit ct
ng vite next astro nuxt vercel ultracite buf sqlfluff cue regal molecule django django=django-admin
    subs build test check lint vet e2e
    drop -c --config --mode
behave robot cucumber cucumber-js ginkgo bats shellspec busted prove elm-test wtr Invoke-Pester
    keep -t --tags --focus
    drop -c --config -f --format
codespell semgrep ansible-lint tflint luacheck hlint swiftlint ktlint detekt svelte-check
    drop -c --config
flutter dart
    subs test analyze build format
    keep --name
meson
    subs test compile
    keep -C
    drop -j
cmake
    needs --build
    keep --build --target -t
    drop -j --parallel --config --preset
terraform tofu helm
    subs validate lint fmt
tsc tsc=tsgo vue-tsc
    keep -p --project -b --build
    drop --target --module --outDir --lib --moduleResolution --jsx --rootDir
mypy dmypy
    keep -p -m -c --package --module
    drop --config-file --python-version --exclude --cache-dir --python-executable --follow-imports
    skip run
pyright basedpyright
    drop -p --project --pythonpath --level --pythonversion
ty pyre pyrefly
    subs check
    drop --python --project
ruff
    subs check format
    keep --select
    drop --config --output-format --target-version --line-length --extend-select --ignore
flake8 pylint pycodestyle pydocstyle
    keep --select --disable --enable
    drop --max-line-length --rcfile --config --ignore -j --format -d -f
eslint oxlint stylelint tslint xo standard
    keep --rule
    drop -c --config --ext --max-warnings --format -f --ignore-path --parser-options
    drop --cache-location -o
biome
    subs check lint ci format
    drop --config-path --max-diagnostics
shellcheck
    drop -s -e -S --severity -f --exclude --shell
pre-commit prek
    subs run
    keep --files
    drop -c --hook-stage
black
    kind formatter
    needs --check
    drop -l --line-length --config -t --target-version
isort
    kind formatter
    needs --check --check-only -c
    drop --profile --settings-path -l
prettier
    kind formatter
    needs --check -c --list-different -l
    drop --config --ignore-path
rustfmt
    kind formatter
    needs --check
    drop --edition --config
gcc g++ cc c++ clang clang++ rustc javac kotlinc nvcc scalac ghc gfortran ocamlc swiftc
    kind sources
    drop -o -I -L -l -D -d -cp -classpath -include -isystem -x -W -C --edition --crate-type
    drop --crate-name --target --out-dir -sourcepath
"""


def _parse_tool_rows() -> Iterator[tuple[list[str], dict[str, list[str]]]]:
    row: dict[str, list[str]] = {}
    for line in _TOOL_TABLE.splitlines():
        words = line.split()
        if line.startswith(" "):
            row.setdefault(words[0], []).extend(words[1:])
        elif words:
            row = {}
            yield words, row


def _build_tools() -> Iterator[tuple[str, ShellTool]]:
    for names, row in list(_parse_tool_rows()):
        subs = [group.split("/") for group in row.get("subs", ())]
        sets = {
            key: frozenset(row.get(key, ())) for key in ("keep", "flags", "drop", "needs", "skip")
        }
        for name in names:
            tool, _, alias = name.partition("=")
            yield (
                alias or tool,
                ShellTool(
                    name=tool,
                    kind=row.get("kind", ["plain"])[0],
                    subs={short: group[0] for group in subs for short in group} or None,
                    **sets,
                ),
            )


CHECK_TOOLS: Mapping[str, ShellTool] = dict(_build_tools())
