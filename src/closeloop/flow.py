"""The system on one page."""
