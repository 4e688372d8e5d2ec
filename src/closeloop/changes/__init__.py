"""What a change is, and what can be said of it by reading it."""
