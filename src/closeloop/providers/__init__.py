"""Models: providers over HTTP, and scripts that need none."""
