"""How projects of each kind are set up, tested, linted, type-checked and built."""
