"""Changes: reading a diff, checking its quality, estimating its risk, reporting the result."""
