"""What closeloop serves over HTTP."""
