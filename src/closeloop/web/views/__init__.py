"""Records of what pages show, and how they are made of records of the model."""
