"""The review loop at work: what is told of pull requests is kept, linked and passed on."""
