"""Numbers one can decide by."""
