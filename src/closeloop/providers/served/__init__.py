"""The formats in which the scripted model is served: one file for each."""
