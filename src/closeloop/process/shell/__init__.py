"""What shell lines are made of, and what the programs in them do."""
