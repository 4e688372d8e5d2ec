"""One module per native format: `name`, `version`, and four functions."""
