"""OpenTelemetry: spans of agents, models and tools, joined to conversations."""
