"""Estimates and tests to decide by."""
