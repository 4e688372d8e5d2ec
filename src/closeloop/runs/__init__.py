"""What an attempt is made with: agents, models, cages, workspaces, tests and their grades."""
