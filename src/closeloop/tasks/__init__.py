"""What is asked for, and how to tell that it was fulfilled: written, checked, split and traded."""
