"""What the machine is and what its devices draw."""
