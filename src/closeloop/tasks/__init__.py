"""Tasks: requests and how success is recognised; written, proved, split, imported and exported."""
