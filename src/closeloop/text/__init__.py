"""Text processing: patches, secrets, patterns, wording."""
