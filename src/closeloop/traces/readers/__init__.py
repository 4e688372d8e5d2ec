"""One native format each. A reader is a module: `name`, `version`, and four functions."""
