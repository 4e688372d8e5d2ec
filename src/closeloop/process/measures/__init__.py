"""What is measured of a lane, one idea a file; rules and rates share it."""
