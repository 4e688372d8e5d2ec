"""Lets the worked examples use the builders of traces, stores and changes of other tests."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("process", "metrics", "reviews", "changes"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
