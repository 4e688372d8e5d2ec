"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def bound(path: Path) -> socket.socket:
    """A socket at a path, whose folder is made.

    The system takes only a hundred bytes or so for its address: so it is named by way of its
    folder, which is open meanwhile. Who connects sees the folder in a cage, under a short path.
    """
    path.parent.mkdir(mode=0o700, parents=True)
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(f"/proc/self/fd/{handle}/{path.name}")
    except OSError:
        made.close()
        raise
    finally:
        os.close(handle)
    return made
