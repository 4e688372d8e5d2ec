"""Tasks from past work: candidates go in, proved tasks come out."""
