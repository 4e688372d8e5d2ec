"""Roo Code and Cline: what their task folders hold."""
