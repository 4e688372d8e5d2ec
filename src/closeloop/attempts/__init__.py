"""Make attempts, schedule them, and save their results."""
