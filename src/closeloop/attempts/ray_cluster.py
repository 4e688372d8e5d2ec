"""Many at once on a Ray cluster: functions are called on its nodes with bytes, and give bytes.

Ray is a launcher here. What must survive is in the store, and only the driver writes it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from closeloop.records.errors import BadInput, MachineFailed

_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class RayCluster:
    """A connection to a Ray cluster, or a small one on this machine for as long as it is open."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        # Ray tells the driver about its nodes on standard output, where only results belong.
        self._aside = redirect_stdout(sys.stderr)
        self._known: dict[Callable[..., bytes], Any] = {}
        """Functions as Ray knows them: it is told of each once."""

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise BadInput("Ray is not installed: pip install 'closeloop[ray]'.") from error
        is_local = self._address is None
        local_options = (
            {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if is_local else {}
        )
        try:
            self._ray.init(
                address="local" if is_local else self._address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local_options,
            )
        except Exception as error:  # whatever Ray raises, there is no cluster
            error_lines = str(error).strip().splitlines() or [type(error).__name__]
            raise MachineFailed(
                f"There is no Ray cluster at {self._address or 'this machine'} "
                f"({error_lines[0].rstrip('.')}): start one with `ray start --head`."
            ) from error
        self._aside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ray.shutdown()
        self._aside.__exit__(kind, error, traceback)

    @property
    def processors(self) -> int:
        """Of all nodes that are there now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def put_content(self, content: bytes) -> Any:
        """Content that any node can have by `fetch_content`, under the reference given back."""
        return self._ray.put(content)

    async def call_on_node(
        self, function: Callable[..., bytes], *arguments: Any, resources: Mapping[str, float]
    ) -> bytes:
        """What the function gives, called on a node with room; MachineFailed when that is lost."""
        needed_resources = {"CPU": 1.0, **resources}
        options: dict[str, Any] = {
            _OPTIONS[n]: v for n, v in needed_resources.items() if n in _OPTIONS
        }
        options["resources"] = {n: v for n, v in needed_resources.items() if n not in _OPTIONS}
        # Whether to begin again is for the flow to say, which writes every try down.
        options["max_retries"] = 0
        if function not in self._known:
            self._known[function] = self._ray.remote(function)
        pending = self._known[function].options(**options).remote(*arguments)
        try:
            answer: bytes = await asyncio.wrap_future(pending.future())
        except self._ray.exceptions.RayError as error:
            error_lines = str(error).strip().splitlines() or [""]
            raise MachineFailed(f"{type(error).__name__}: {error_lines[-1][:300]}") from error
        return answer


def fetch_content(reference: Any) -> bytes:
    """On a node: the content that the driver has put."""
    content: bytes = import_module("ray").get(reference)
    return content
