"""What agents really did: their own files, read into one model."""
