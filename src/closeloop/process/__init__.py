"""Can the agent close the loop? Pure rules over a trace, and what they measure."""
