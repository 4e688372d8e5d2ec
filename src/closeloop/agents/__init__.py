"""The agents: the built-in one, and wrapped programs."""
