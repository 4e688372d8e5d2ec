"""What each program does to the workspace."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from closeloop.process.shell import files, packages, repositories, waiting
from closeloop.process.shell.sheet import Effect, Sheet
from closeloop.process.shell.split import Part, Words


def _find(words: Words, part: Part, sheet: Sheet) -> None:
    if "-delete" in words:
        sheet.changed()
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-x") and i + 1 < len(words):
            name = posixpath.basename(words[i + 1])
            if name in EFFECTS and name != "find":
                end = words.index(";", i) if ";" in words[i:] else len(words)
                EFFECTS[name](words[i + 1 : end], part, sheet)
            return


def _cd(words: Words, _part: Part, sheet: Sheet) -> None:
    if len(words) > 1:
        sheet.enter(words[1])


def _mktemp(_words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.temporary = True


def _table(rows: Mapping[str, Effect]) -> dict[str, Effect]:
    return {name: effect for names, effect in rows.items() for name in names.split()}


EFFECTS: Mapping[str, Effect] = _table(
    {
        "cat less more zcat tac": files.shows,
        "head nl bat batcat strings xxd od hexdump": files.shows_some,
        "tail": files.tail,
        "grep egrep fgrep rg ag ack zgrep": files.grep,
        "diff cmp colordiff Get-Content gc": files.shows,
        "sed gsed": files.sed,
        "awk gawk mawk": files.awk,
        "perl": files.perl,
        "rm mv touch mkdir truncate rmdir unlink shred tee zip mkfifo": files.writes_all,
        "cp ln install rsync": files.writes_last,
        "chmod chown": files.changes_mode,
        "patch apply_patch applypatch": files.patch,
        "git": repositories.git,
        "pip pipx conda mamba gem apt apt-get apk yum dnf brew pacman choco": packages.on_words(
            "install uninstall remove add upgrade create del"
        ),
        "uv poetry pdm rye pipenv hatch": packages.on_words(
            "add remove sync lock install uninstall update init new venv fmt"
        ),
        "bundle": packages.on_words("install update add"),
        "composer": packages.on_words("install require update remove"),
        "go": packages.go,
        "dotnet": packages.on_words("add new restore remove"),
        "mix": packages.on_words("deps.get deps.update format new"),
        "dart flutter": packages.on_words("pub create format"),
        "django-admin": packages.on_words("startproject startapp"),
        "npm pnpm yarn bun": packages.package_scripts,
        "make gmake just task invoke inv rake mise": packages.tasks,
        "venv virtualenv ensurepip": lambda words, part, sheet: sheet.changed(),
        "7z 7za unrar": packages.on_words("x e a"),
        "black isort rustfmt pyupgrade docformatter": packages.formats(),
        "autopep8 autoflake yapf clang-format": packages.formats("-i", "--in-place"),
        "gofmt goimports gofumpt shfmt": packages.formats("-w"),
        "prettier": packages.formats("--write", "-w"),
        "eslint stylelint standard xo oxlint": packages.formats("--fix"),
        "biome": packages.formats("--write", "--apply", "--fix"),
        "rubocop": packages.formats("-a", "-A", "--auto-correct", "--autocorrect"),
        "terraform tofu": packages.on_words("fmt init apply"),
        "ruff": packages.ruff,
        "cargo": packages.cargo,
        "python node nodejs ruby deno": files.code,
        "tar": files.tar,
        "unzip gunzip gzip bunzip2": files.unpacks,
        "curl wget": files.curl,
        "dd": files.dd,
        "find fd fdfind": _find,
        "cd pushd": _cd,
        "mktemp": _mktemp,
        "sleep Start-Sleep wait watch inotifywait ps pgrep pidof jobs top htop": waiting.waits,
        "uptime squeue sacct nvidia-smi lsof ss netstat": waiting.waits,
        "docker podman docker-compose podman-compose": waiting.waits_if(
            "ps", "logs", "inspect", "stats", "container ls", "wait", "top"
        ),
        "kubectl": waiting.waits_if("get", "describe", "logs", "rollout status", "wait", "top"),
        "gh": waiting.waits_if("run watch", "run view", "run list", "pr checks", "pr status"),
        "systemctl": waiting.waits_if("status", "is-active", "show"),
        "supervisorctl pm2": waiting.waits_if("status", "list", "logs", "ls"),
        "tmux": waiting.waits_if("capture-pane"),
        "nc": waiting.nc,
    }
)
