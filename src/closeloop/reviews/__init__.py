"""The human side: pull requests, reviews, corrections, rules and what agents are told of them."""
