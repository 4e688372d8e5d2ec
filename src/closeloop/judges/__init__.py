"""What judges ask, by which rubrics, and what their answers come to."""
