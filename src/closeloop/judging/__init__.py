"""Judges at work: models asked, facts put first, evaluations kept and held against people."""

from closeloop.judging.evaluator import evaluate_outputs

__all__ = ["evaluate_outputs"]
