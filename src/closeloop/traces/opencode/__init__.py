"""OpenCode: what its exports, lines and database have in common."""
