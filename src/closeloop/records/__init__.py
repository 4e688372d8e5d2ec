"""The records, protocols and errors that every part of closeloop speaks in."""
