"""What was drafted and accepted: the record, where it is read from, and the checks it must pass."""
