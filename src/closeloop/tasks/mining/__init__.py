"""Past work as tasks: which commits could be one, and what to ask for. Nothing is run here."""
