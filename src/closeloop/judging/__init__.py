"""Judges at work: models asked, facts put first, evaluations kept and held against people."""

from closeloop.judging.evaluate import evaluate

__all__ = ["evaluate"]
