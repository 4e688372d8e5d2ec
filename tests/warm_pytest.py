"""Start pytest quickly for tests that start it often: as a copy of a process that has imported it.

Importing pytest takes two thirds of a short run. A program called `python` hands `-m pytest` with
its arguments, environment, folder and open files to a server of this worker process, which forks.
The copy is as `python -m pytest` is after its imports: code of the project cannot stand in for a
module of pytest or have itself loaded when Python starts. Tests of that start pytest themselves, as
do tests in a sandbox, from which the server is out of reach.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / f"warm-{os.getpid()}"
PYTHON = str(FOLDER / "python")
"""The program; it is there in tests that use the fixture `warm_python`."""
CLIENT = """\
#!{python} -IS
import os, sys
if sys.argv[1:3] != ["-m", "pytest"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import _socket
given = b"\\0".join([b"=".join(pair) for pair in os.environb.items()])
words = map(os.fsencode, [os.getcwd(), *sys.argv[2:]])
request = given + b"\\0\\0" + b"\\0".join(words)
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
size = len(request).to_bytes(4, "big")
server.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
while request:
    request = request[server.send(request):]
code = int(server.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def serve_pytest() -> Iterator[None]:
    """While this lasts, `PYTHON -m pytest` is quick."""
    shutil.rmtree(FOLDER, ignore_errors=True)  # of a process that was killed
    FOLDER.mkdir()
    address = str(FOLDER / "socket")
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        Path(PYTHON).write_text(CLIENT.format(python=sys.executable, address=address))
        Path(PYTHON).chmod(0o755)
        yield
    finally:
        server.communicate()
        shutil.rmtree(FOLDER)


def receive_request(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]]:
    """Arguments, folder, environment, and standard input, output and error."""
    files = array.array("i")
    head, messages, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, content in messages:
        files.frombytes(content)
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    given, _, words = os.fsdecode(text).partition("\0\0")
    environment = dict(pair.split("=", 1) for pair in given.split("\0"))
    folder, *arguments = words.split("\0")
    return arguments, folder, environment, list(files)


def become_pytest(
    arguments: list[str], folder: str, environment: dict[str, str], files: list[int]
) -> None:
    """Make this process what `python -m pytest` is before it reads its arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1024)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [folder, *given]
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    sys.modules["__main__"] = types.ModuleType("__main__")


def serve(address: str) -> bool:
    """Serve until standard input ends; True in a copy that has become pytest."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(0, select.POLLHUP)
    running: dict[int, tuple[int, socket.socket]] = {}
    print("ready", flush=True)
    while True:
        for file, _ in poll.poll():
            if file == 0:
                return False
            if file in running:
                process, connection = running.pop(file)
                poll.unregister(file)
                os.close(file)
                _, status = os.waitpid(process, 0)
                fcntl.fcntl(connection, fcntl.F_SETFL, 0)
                with suppress(OSError):  # whoever asked may have been killed
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                connection.close()
                continue
            connection, _ = listener.accept()
            request = receive_request(connection)
            process = os.fork()
            if process == 0:
                for opened in (listener, connection, *(pair[1] for pair in running.values())):
                    opened.detach()
                become_pytest(*request)
                return True
            for given in request[3]:
                os.close(given)
            # When whoever asked is killed, so is the copy.
            fcntl.fcntl(connection, fcntl.F_SETOWN, process)
            fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
            watched = os.pidfd_open(process)
            running[watched] = process, connection
            poll.register(watched, select.POLLIN)


if __name__ == "__main__":
    import pytest
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    this = sys.modules["__main__"]  # or its names are gone when a copy puts another in its place
    gc.collect()
    gc.freeze()  # copies share what none of them changes
    if serve(sys.argv[1]):
        ended_by = pytest.main()
        # As Python ends, but for taking apart what is gone with the process: a quarter of its time.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended_by)
