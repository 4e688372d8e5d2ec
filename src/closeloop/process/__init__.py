"""Process rules and measures over a trace: can the agent close the loop? All pure functions."""
