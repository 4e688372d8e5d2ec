"""Logs of Inspect: what is in their files, and what one sample's events tell."""
