"""closeloop tells a team whether its coding agents work."""

__version__ = "0.1.0"
