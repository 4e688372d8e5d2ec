"""Run tests in a clean room and grade attempts by their results."""
