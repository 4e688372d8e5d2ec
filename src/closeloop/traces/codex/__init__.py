"""Codex rollouts: one file a thread, and the threads it started."""
