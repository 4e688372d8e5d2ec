"""Human feedback: pull requests, reviews, corrections, team rules and the context agents get."""
