"""Make attempts, schedule them, and save what came of them."""
