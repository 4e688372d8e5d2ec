"""What Claude Code's session files and its stream have in common: messages of the provider."""
