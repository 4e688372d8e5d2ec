"""What each program does to the workspace."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from closeloop.process.shell import file_programs, git_effects, package_programs, waiting_programs
from closeloop.process.shell.command_effects import CommandEffects, ProgramEffect
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords


def _find_effect(words: ShellWords, part: ShellCommand, sheet: CommandEffects) -> None:
    if "-delete" in words:
        sheet.record_unnamed_change()
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-x") and i + 1 < len(words):
            name = posixpath.basename(words[i + 1])
            if name in PROGRAM_EFFECTS and name != "find":
                end = words.index(";", i) if ";" in words[i:] else len(words)
                PROGRAM_EFFECTS[name](words[i + 1 : end], part, sheet)
            return


def _cd_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    if len(words) > 1:
        sheet.enter_folder(words[1])


def _mktemp_effect(_words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.temporary = True


def _build_effect_table(rows: Mapping[str, ProgramEffect]) -> dict[str, ProgramEffect]:
    return {name: effect for names, effect in rows.items() for name in names.split()}


PROGRAM_EFFECTS: Mapping[str, ProgramEffect] = _build_effect_table(
    {
        "cat less more zcat tac": file_programs.show_effect,
        "head nl bat batcat strings xxd od hexdump": file_programs.show_part_effect,
        "tail": file_programs.tail_effect,
        "grep egrep fgrep rg ag ack zgrep": file_programs.grep_effect,
        "diff cmp colordiff Get-Content gc": file_programs.show_effect,
        "sed gsed": file_programs.sed_effect,
        "awk gawk mawk": file_programs.awk_effect,
        "perl": file_programs.perl_effect,
        "rm mv touch mkdir truncate rmdir unlink shred tee zip mkfifo": (
            file_programs.write_all_effect
        ),
        "cp ln install rsync": file_programs.write_last_effect,
        "chmod chown": file_programs.change_mode_effect,
        "patch apply_patch applypatch": file_programs.patch_effect,
        "git": git_effects.git_effect,
        "pip pipx conda mamba gem apt apt-get apk yum dnf brew pacman choco": (
            package_programs.subcommand_effect("install uninstall remove add upgrade create del")
        ),
        "uv poetry pdm rye pipenv hatch": package_programs.subcommand_effect(
            "add remove sync lock install uninstall update init new venv fmt"
        ),
        "bundle": package_programs.subcommand_effect("install update add"),
        "composer": package_programs.subcommand_effect("install require update remove"),
        "go": package_programs.go_effect,
        "dotnet": package_programs.subcommand_effect("add new restore remove"),
        "mix": package_programs.subcommand_effect("deps.get deps.update format new"),
        "dart flutter": package_programs.subcommand_effect("pub create format"),
        "django-admin": package_programs.subcommand_effect("startproject startapp"),
        "npm pnpm yarn bun": package_programs.package_script_effect,
        "make gmake just task invoke inv rake mise": package_programs.task_effect,
        "venv virtualenv ensurepip": lambda words, part, sheet: sheet.record_unnamed_change(),
        "7z 7za unrar": package_programs.subcommand_effect("x e a"),
        "black isort rustfmt pyupgrade docformatter": package_programs.formatter_effect(),
        "autopep8 autoflake yapf clang-format": package_programs.formatter_effect(
            "-i", "--in-place"
        ),
        "gofmt goimports gofumpt shfmt": package_programs.formatter_effect("-w"),
        "prettier": package_programs.formatter_effect("--write", "-w"),
        "eslint stylelint standard xo oxlint": package_programs.formatter_effect("--fix"),
        "biome": package_programs.formatter_effect("--write", "--apply", "--fix"),
        "rubocop": package_programs.formatter_effect("-a", "-A", "--auto-correct", "--autocorrect"),
        "terraform tofu": package_programs.subcommand_effect("fmt init apply"),
        "ruff": package_programs.ruff_effect,
        "cargo": package_programs.cargo_effect,
        "python node nodejs ruby deno": file_programs.code_effect,
        "tar": file_programs.tar_effect,
        "unzip gunzip gzip bunzip2": file_programs.unpack_effect,
        "curl wget": file_programs.curl_effect,
        "dd": file_programs.dd_effect,
        "find fd fdfind": _find_effect,
        "cd pushd": _cd_effect,
        "mktemp": _mktemp_effect,
        "sleep Start-Sleep wait watch inotifywait ps pgrep pidof jobs top htop": (
            waiting_programs.wait_effect
        ),
        "uptime squeue sacct nvidia-smi lsof ss netstat": waiting_programs.wait_effect,
        "docker podman docker-compose podman-compose": waiting_programs.waiting_subcommand_effect(
            "ps", "logs", "inspect", "stats", "container ls", "wait", "top"
        ),
        "kubectl": waiting_programs.waiting_subcommand_effect(
            "get", "describe", "logs", "rollout status", "wait", "top"
        ),
        "gh": waiting_programs.waiting_subcommand_effect(
            "run watch", "run view", "run list", "pr checks", "pr status"
        ),
        "systemctl": waiting_programs.waiting_subcommand_effect("status", "is-active", "show"),
        "supervisorctl pm2": waiting_programs.waiting_subcommand_effect(
            "status", "list", "logs", "ls"
        ),
        "tmux": waiting_programs.waiting_subcommand_effect("capture-pane"),
        "nc": waiting_programs.nc_effect,
    }
)
