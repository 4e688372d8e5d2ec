"""Recorded sessions of agents, read from their own files into one model."""
