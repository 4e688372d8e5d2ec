"""From stored traces to measurements, and from measurements to a gate."""
