"""Recorded sessions come in: files are found, read, rid of secrets, and kept."""
