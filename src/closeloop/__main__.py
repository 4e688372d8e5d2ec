"""`python -m closeloop` is `closeloop`."""

import os
import sys

# Python also looks for modules in the current folder, which may be a repository of anybody's.
sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]  # noqa: PTH109

from closeloop.cli import main  # noqa: E402

main()
