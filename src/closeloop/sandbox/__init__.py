"""Sandboxes: what commands can see, reach, use and outlive."""
