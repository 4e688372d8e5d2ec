"""Measurements from stored traces, and metrics, comparisons and gates from measurements."""
