"""The gate: two sides in, measured side by side, and whether B may take the place of A out."""
