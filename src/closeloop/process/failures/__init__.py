"""Failing tests and errors, read from what tools print: one small module per family of tools.

Each module has `marks` (one of them is in its output), `verdict` (what its last words say) and
`gather` (which tests or places fail).
"""
