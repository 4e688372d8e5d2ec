"""Checks of a change's code: each module is one, found by its entry point in `closeloop.checks`."""
