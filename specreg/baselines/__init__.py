"""What was recorded: its schema, its files, and what a measurement is compared with."""
