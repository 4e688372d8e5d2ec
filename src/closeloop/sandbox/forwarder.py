"""Lets a command in a cage reach some sockets of ours as ports of its own loopback.

A program, not a module: run as `python -I -S forwarder.py PORTS COMMAND…`, it may use nothing but
the standard library. PORTS is JSON, port → path of a Unix socket. It ends with its command.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

CHUNK_BYTES = 1 << 16


def main() -> None:
    socket_by_listener = {
        listen_on_port(int(port)): path for port, path in json.loads(sys.argv[1]).items()
    }
    command_pid = os.fork()  # before there are threads; early connections wait in the queue
    if command_pid == 0:
        exec_command(sys.argv[2:])
    for listener, path in socket_by_listener.items():
        threading.Thread(target=accept_clients, args=(listener, path), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(command_pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def listen_on_port(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def exec_command(argv: list[str]) -> None:
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def accept_clients(listener: socket.socket, path: str) -> None:
    while True:
        client = listener.accept()[0]
        threading.Thread(target=connect_client, args=(client, path), daemon=True).start()


def connect_client(client: socket.socket, path: str) -> None:
    """Copy both ways until either side has closed."""
    server = socket.socket(socket.AF_UNIX)
    with client, server, suppress(OSError):
        # Answers arrive in small pieces, which must not be delayed.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.connect(path)
        back = threading.Thread(target=carry_bytes, args=(server, client), daemon=True)
        back.start()
        carry_bytes(client, server)
        back.join()


def carry_bytes(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
