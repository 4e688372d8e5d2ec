"""`python -m closeloop` is `closeloop`."""

from closeloop.cli import main

main()
