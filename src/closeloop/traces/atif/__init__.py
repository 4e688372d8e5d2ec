"""Harbor's trajectories: their files, their steps, their numbers."""
