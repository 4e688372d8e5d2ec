"""Where work is done: a task group on this machine."""
