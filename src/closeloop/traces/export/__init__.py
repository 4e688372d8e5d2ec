"""Traces written for other tools: each format is a pure function of a record and its trace."""
