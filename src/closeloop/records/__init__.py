"""Records, protocols and errors shared by every part of closeloop."""
