"""One rule each. A detector is a module: `rule`, what it looks for, and `detect`, which looks."""
