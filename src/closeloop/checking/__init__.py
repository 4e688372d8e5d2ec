"""Validate a change with everything at hand, and tell those who will merge it."""
