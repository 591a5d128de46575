"""What is measured of running servers, and the journal of it."""
