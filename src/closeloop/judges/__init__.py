"""Judges: what they ask, by which rubrics, and how their answers are scored."""
