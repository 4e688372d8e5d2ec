"""Whether a result may be believed: code under test shares a process with its test runner."""
