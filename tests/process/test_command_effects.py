"""What command lines write, show, look for and wait for."""

from __future__ import annotations

import pytest

from closeloop.process.command_analysis import analyse_command

WRITES = {
    "echo hi > a.txt": ["a.txt"],
    "cat > src/a.py <<'EOF'\nx = 1 > 0\nrm b.py\nEOF": ["src/a.py"],
    "cat <<EOF >> notes.md\nhi\nEOF\ncat > b.md <<EOF\nho\nEOF": ["notes.md", "b.md"],
    "printf x | tee -a a.log b.log": ["a.log", "b.log"],
    "sed -i 's/a/b/' src/a.py src/b.py": ["src/a.py", "src/b.py"],
    "sed -i '' -e 's/a/b/' a.ts": ["a.ts"],
    "sed -Ei.bak 's/a/b/' a.py": ["a.py"],
    "perl -pi -e 's/a/b/' a.py": ["a.py"],
    "grep -rl old src | xargs sed -i 's/old/new/'": [],
    "find . -name '*.pyc' -delete": [],
    "find . -name '*.py' -exec sed -i 's/a/b/' {} \\;": [],
    "mv a.py b.py": ["a.py", "b.py"],
    "cp -r a.py pkg/b.py": ["pkg/b.py"],
    "rm -rf build dist": ["build", "dist"],
    "touch a.py": ["a.py"],
    "chmod +x run.sh": ["run.sh"],
    "git checkout -- src/a.py": ["src/a.py"],
    "git checkout src/a.py": ["src/a.py"],
    "git restore src/a.py": ["src/a.py"],
    "git -C repo reset --hard HEAD~1": [],
    "git stash": [],
    "git stash pop": [],
    "git pull --rebase": [],
    "git apply <<'EOF'\n--- a/x.py\n+++ b/x.py\nEOF": ["x.py"],
    "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.py\n@@\n*** End Patch\nEOF": ["a.py"],
    "apply_patch '*** Begin Patch\n*** Add File: b.py\n+x\n*** End Patch'": ["b.py"],
    "patch -p1 < fix.diff": [],
    "black src/a.py": ["src/a.py"],
    "ruff format": [],
    "ruff check --fix": [],
    "npx eslint --fix src/a.ts": ["src/a.ts"],
    "npm run lint:fix": [],
    "gofmt -w a.go": ["a.go"],
    "go mod tidy": [],
    "cargo fmt": [],
    "pip install -e .": [],
    "uv pip install httpx": [],
    "npm ci": [],
    "yarn": [],
    "apt-get install -y jq": [],
    "tar xzf a.tgz": [],
    "unzip a.zip": [],
    "curl -fsSL -o a.json https://example.org": ["a.json"],
    "python - <<'PY'\nfrom pathlib import Path\np = Path('a.py')\np.write_text('')\nPY": ["a.py"],
    "python -c \"open('a.py', 'w').write('x')\"": ["a.py"],
    "python3 -c \"p='a.py'; s=open(p).read(); open(p, 'w').write(s)\"": ["a.py"],
    "node -e \"require('fs').writeFileSync('a.js', '')\"": ["a.js"],
    "cd pkg && sed -i 's/a/b/' src/a.py": ["pkg/src/a.py"],
    "cd /srv/app && echo > ../b.py": ["/srv/b.py"],
    "bash <<'EOF'\ncd a\ntouch b\nEOF": ["a/b"],
    "echo x > /tmp/run-1/workspace/app/a.py": ["/tmp/run-1/workspace/app/a.py"],
    "make install": [],
    "awk -i inplace '{print}' a.py": ["a.py"],
    "ruby -i -ne 'print' a.rb": ["a.rb"],
    "ed -s a.py <<'E'\nw\nE": ["a.py"],
    "vim -es -c '%s/a/b/' -c wq a.py": ["a.py"],
    "sed 's/a/b/' a.py | sponge a.py": ["a.py"],
    "yq -i '.a = 1' a.yaml": ["a.yaml"],
    "Set-Content -Path a.py -Value 'x'": ["a.py"],
    "Get-Content a.py | Set-Content a.py": ["a.py"],
    "cp /dev/stdin a.py <<'E'\nx\nE": ["a.py"],
}


@pytest.mark.parametrize(("line", "written"), WRITES.items())
def test_what_is_written_is_told_and_named_where_it_can_be(line: str, written: list[str]) -> None:
    doing = analyse_command(line)
    assert doing.writes
    assert list(doing.written) == written


@pytest.mark.parametrize(
    "line",
    [
        "ls -la",
        "mkdir -p src/new",
        "cat a.py",
        "echo 'a > b'",
        "echo hi > /dev/null",
        "make 2>/dev/null",
        "echo hi > /tmp/a.txt",
        "mkdir -p /tmp/x && cd /tmp/x && touch a",
        't=$(mktemp); cat > "$t" <<EOF\nx\nEOF',
        "pytest > results.txt 2>&1",
        "pytest | tee results.txt",
        "git add -A && git commit -m 'rm x'",
        "git checkout -b new",
        "git stash list",
        "git reset HEAD a.py",
        "git apply --check a.patch",
        "git log --oneline | head",
        "black --check src",
        "ruff check src",
        "gofmt -l .",
        "sed -n '1,20p' a.py",
        "python -c 'print(1 >> 2)'",
        "python -c \"import sys; sys.stdout.write(open('a').read())\"",
        "python - <<'EOF'\nimport tarfile, io\ntarfile.open(fileobj=io.BytesIO(), mode='w')\nEOF",
        "go test ./...",
        "[[ 1 -gt 0 ]] && echo yes",
        "tar tf a.tgz",
        "curl -s https://example.org",
        "pip list",
        "nohup npm start > server.log 2>&1 &",
    ],
)
def test_what_changes_nothing_in_the_workspace_writes_nothing(line: str) -> None:
    doing = analyse_command(line)
    assert (doing.writes, doing.written) == (False, ())


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("cat a.py b.py", ["a.py", "b.py"]),
        ("cat -n a.py | head -40", ["a.py"]),
        ("head -n 20 a.py", ["a.py"]),
        ("head -20 a.py", ["a.py"]),
        ("tail -n +5 a.py", ["a.py"]),
        ("nl -ba src/a.py | sed -n '1,80p'", ["src/a.py"]),
        ("sed -n '1,200p' a.py && sed -n 5p b.py", ["a.py", "b.py"]),
        ("awk 'NR<5' a.csv", ["a.csv"]),
        ("grep -n 'def x' src/a.py", ["src/a.py"]),
        ("rg -n pattern src/a.py src", ["src/a.py"]),
        ("diff a.py b.py", ["a.py", "b.py"]),
        ("git show HEAD~1:src/a.py", ["src/a.py"]),
        ("cat < a.py", ["a.py"]),
        ("cd pkg && cat a.py", ["pkg/a.py"]),
        ("cat src/*.py", []),
        ("cat a.py > b.py", []),
        ("grep -rn x src", []),
        ("grep -l x a.py", []),
        ("cat <<'EOF'\na.py\nEOF", []),
        ("ls a.py", []),
        ("python a.py", []),
    ],
)
def test_files_whose_content_is_shown(line: str, read: list[str]) -> None:
    assert list(analyse_command(line).read) == read


@pytest.mark.parametrize(
    "line",
    """
    grep -rn foo src
    cd a && rg foo
    cat a.py | grep foo
    grep foo a.py | head -5
    grep -q foo a.py && echo yes || echo no
    find . -name '*.py' | sort
    git grep foo
    which python
    command -v jq
    test -f a.py
    [ -f a.py ] && echo yes
    diff a b
    """.strip().splitlines(),
)
def test_a_search_may_find_nothing(line: str) -> None:
    assert analyse_command(line.strip()).searches


@pytest.mark.parametrize(
    "line",
    ["ls a", "grep x a && pytest", "grep x a; ls b", "rg x | xargs rm", "git log", "cat a.py"],
)
def test_a_line_that_something_else_decides_is_no_search(line: str) -> None:
    assert not analyse_command(line).searches


WAITS = """
sleep 30
sleep 60 && tail -5 out.log
wait
tail -f server.log
tail -n 50 nohup.out
watch -n 1 ls
ps aux | grep node
jobs
docker ps
docker compose logs web
kubectl get pods -n shop
gh run watch 123
gh pr checks 7
systemctl status nginx
nc -z localhost 5432
curl -s localhost:8080/health
curl -o /dev/null -w '%{http_code}' http://127.0.0.1:3000/
while ! nc -z localhost 5432; do sleep 1; done
until curl -sf http://localhost:3000/ready; do sleep 2; done
flyctl status
"""


@pytest.mark.parametrize("line", WAITS.strip().splitlines())
def test_waiting_and_polling_is_told(line: str) -> None:
    assert analyse_command(line).waits


@pytest.mark.parametrize(
    "line",
    [
        "sleep 1 && pytest",
        "ls",
        "tail -20 a.py",
        "curl 'http://localhost:3000/price?n=10'",
        "git status",
        "curl https://example.org/status",
        "docker build .",
        "sleep 1; rm a.py",
    ],
)
def test_what_does_more_than_wait_does_not_wait(line: str) -> None:
    assert not analyse_command(line).waits
