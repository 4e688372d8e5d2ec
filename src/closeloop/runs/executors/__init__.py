"""Where work is done: in a task group on this machine, or on a Ray cluster."""
