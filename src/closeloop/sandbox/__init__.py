"""Cages: commands that see, reach, use and outlive only what they are given."""
