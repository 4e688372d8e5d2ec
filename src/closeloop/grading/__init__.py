"""Run tests in a clean room, and grade what an attempt did by them."""
