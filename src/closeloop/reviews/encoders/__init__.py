"""Texts as vectors whose nearness is likeness of meaning. They retrieve; they never decide."""
