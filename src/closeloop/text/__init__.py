"""Text as closeloop reads and writes it: patches, secrets, patterns, wording."""
