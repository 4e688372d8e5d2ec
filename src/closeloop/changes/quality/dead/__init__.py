"""Ways in which added code can be dead; each module tells lines, and what is wrong with them."""
