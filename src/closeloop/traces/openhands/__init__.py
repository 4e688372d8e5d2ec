"""What the readers of OpenHands share."""
