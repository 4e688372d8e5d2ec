"""The agents: our own, and programs of others, each called in its own way."""
