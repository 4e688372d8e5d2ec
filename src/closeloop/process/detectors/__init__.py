"""One rule per module: `rule`, what it looks for, and `detect`, the function."""
