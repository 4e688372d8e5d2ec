from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from command_line import typed
from patience import PATIENCE

SCRIPT = "name: careful\ndialogues: [{turns: [{say: Hello., repeat: true}]}]"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "closeloop", "admin", "gateway", *arguments]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_model_is_served_and_recorded_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCRIPT)
    running = start(tmp_path, "--model", "scripted:s.yaml", "--record", "talk.jsonl")
    try:
        assert running.stdout is not None
        # What is read ahead of a line would be lost to `communicate`.
        told = [running.stdout.readline()]
        while "OPENAI_API_KEY" not in told[-1]:
            told.append(running.stdout.readline())
        assert told[0].startswith("careful answers at http://127.0.0.1:")
        address = told[0].split()[-1]
        assert f"ANTHROPIC_BASE_URL={address}" in "".join(told)
        asked = {"messages": [{"role": "user", "content": "Hi"}]}
        for path in ("/v1/messages", "/v1/chat/completions"):
            response = httpx.post(address + path, json=asked, trust_env=False, timeout=PATIENCE)
            assert "Hello." in response.text
    finally:
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=PATIENCE)
    lines = (tmp_path / "talk.jsonl").read_bytes().splitlines()
    paths = [json.loads(line)["path"] for line in lines]
    assert paths == ["/v1/messages", "/v1/chat/completions"]
    assert rest.endswith("tokens in, 4 out.\n")
    assert "Traceback" not in rest


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCRIPT)
    for arguments, said in (
        (("--model", "openai/gpt-9"), "set OPENAI_API_KEY"),
        (("--model", "recorded:none"), "No attempt begins with 'none'"),
        (("--model", "scripted:s.yaml", "--port", "99999"), "Cannot listen on port 99999"),
    ):
        done = typed(tmp_path, "admin", "gateway", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
