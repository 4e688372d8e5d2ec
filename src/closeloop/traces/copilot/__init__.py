"""Copilot CLI: its tools' calls."""
