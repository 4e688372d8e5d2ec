"""What a request of 20 kB through the gateway takes, and what it adds for the agent.

The gateway runs in this process, its clients in others, each on a socket of its own. The overhead
is what a client waits for longer than it does at a server that only reads and answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from harness import REFERENCE, Bench
from table import Row, build_row

SCRIPT = (
    "name: m\ndialogues: [{turns: [{say: I look at it now., do: [{run: ls -l}], repeat: true}]}]"
)
CLIENTS, REQUESTS, SINGLE = 8, 50, 150
DOORS = 100


def measure(bench: Bench) -> Iterator[Row]:
    # Passed on over HTTP, a second connection is served: most of that is the HTTP library's.
    for kind, what, budget in (("scripted", "answered here", 2), ("remote", "passed on", 4)):
        for stream, how in (("whole", ""), ("stream", ", streamed")):
            if bench.is_smoke and (kind, stream) == ("remote", "whole"):
                continue
            size = (bench.size(CLIENTS, 1), bench.size(REQUESTS, 2))
            work = partial(bench.call, "gateway", "measure_gateway", kind, stream, *size)
            times = bench.repeat(work)
            yield build_row(
                f"a request {what}{how}, CPU", times["cpu"], "ms", floor=times["reference"],
                against=REFERENCE, budget=budget,
            )  # fmt: skip
            yield build_row(
                f"a request {what}{how}, seconds for one", times["single"], "ms",
                floor=times["bare"], against="a server that only reads and answers",
            )  # fmt: skip


def payload(stream: bool) -> bytes:
    """About 20 kB, as an agent's first requests have."""
    tools = [{"name": "run", "input_schema": {"type": "object", "required": ["command"]}}]
    words = "The quick brown fox jumps over the lazy dog. " * 9
    said = [
        {"role": "user" if turn % 2 == 0 else "assistant", "content": f"{turn} {words}"}
        for turn in range(45)
    ]
    return json.dumps({"stream": stream, "messages": said, "tools": tools}).encode()


def ask(connection: socket.socket, body: bytes, head: str) -> float:
    """Seconds until the whole answer is there."""
    began = time.perf_counter()
    connection.sendall(head.format(length=len(body)).encode() + body)
    answer = b""
    while not (b"\r\n0\r\n\r\n" in answer or _is_whole(answer)):
        answer += connection.recv(1 << 16)
    assert b" 200 " in answer[:16], answer[:300]
    return time.perf_counter() - began


def _is_whole(answer: bytes) -> bool:
    head, found, rest = answer.partition(b"\r\n\r\n")
    _, named, length = head.partition(b"content-length: ")
    return bool(found and named) and len(rest) >= int(length.split(b"\r\n")[0])


def be_client(path: str, count: str, stream: str) -> None:
    """Ask again and again, and print how long each took."""
    body = payload(stream == "stream")
    # Different from client to client and turn to turn, as conversations are.
    head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        took = []
        for number in range(int(count)):
            new = f'{{"x": "{os.getpid()} {number}", '.encode()
            took.append(ask(connection, new + body[1:], head))
    print(json.dumps(took))


async def clients(paths: list[str], count: int, stream: str) -> list[float]:
    """All of them at once."""
    made = [
        await asyncio.create_subprocess_exec(
            sys.executable, __file__, "client", path, str(count), stream, stdout=subprocess.PIPE
        )
        for path in paths
    ]
    told = [(await one.communicate())[0] for one in made]
    return [seconds for each in told for seconds in json.loads(each)]


async def bare(path: str, answer: bytes) -> asyncio.Server:
    """A server that reads a request and gives an answer it has ready."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            length = 0
            while (head := await reader.readline()) != b"\r\n":
                if head.startswith(b"content-length: "):
                    length = int(head.split()[1])
            await reader.readexactly(length)
            writer.write(answer)
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(one, path)


@asynccontextmanager
async def provider(folder: Path) -> AsyncIterator[str]:
    """The scripted model over HTTP, in a process of its own."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "provider", str(folder / "m.yaml"), stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    try:
        yield (await running.stdout.readline()).decode().strip()
    finally:
        running.terminate()
        await running.wait()


async def be_provider(script: Path) -> None:
    from closeloop.providers.script_server import serve_script
    from closeloop.providers.scripted_model import load_script

    async with serve_script(load_script(script)) as address:
        print(address, flush=True)
        await asyncio.sleep(3600)


def measure_gateway(kind: str, stream: str, count: int, requests: int) -> dict[str, float]:
    """CPU seconds of a request when several clients ask at once; the wait of one alone."""
    return asyncio.run(_measure_gateway(kind, stream, count, requests))


async def _measure_gateway(kind: str, stream: str, count: int, requests: int) -> dict[str, float]:
    from closeloop.gateway import Gateway
    from closeloop.records.settings import ModelSettings
    from closeloop.records.task import Limits

    singles = min(SINGLE, 3 * requests)
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        (folder / "m.yaml").write_text(SCRIPT)
        settings = ModelSettings(provider="scripted", model="m.yaml")
        if kind == "remote":
            address = await opened.enter_async_context(provider(folder))
            settings = ModelSettings(provider="anthropic", model="m", base_url=address)
        gateway = await opened.enter_async_context(Gateway({}, folder))
        limits = Limits(turns=1 << 30)
        doors = [
            await opened.enter_async_context(gateway.open_proxy("m", settings, limits))
            for _ in range(DOORS)
        ]
        ready = b"HTTP/1.1 200 OK\r\ncontent-length: 600\r\n\r\n" + b"x" * 600
        floor = await bare(f"{folder}/bare", ready)
        alone = await clients([f"{folder}/bare"], singles, stream)
        floor.close()
        single = await clients([doors[0].socket], singles, stream)
        before = time.process_time()
        await clients([door.socket for door in doors[:count]], requests, stream)
        return {
            "single": statistics.median(single),
            "bare": statistics.median(alone),
            "cpu": (time.process_time() - before) / (count * requests),
        }


if __name__ == "__main__":
    match sys.argv[1]:
        case "client":
            be_client(*sys.argv[2:])
        case "provider":
            asyncio.run(be_provider(Path(sys.argv[2])))
