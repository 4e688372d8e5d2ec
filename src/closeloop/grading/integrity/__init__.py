"""Check whether a test result can be trusted: code under test shares a process with its runner."""
