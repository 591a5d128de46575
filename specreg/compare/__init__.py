"""Two or more measurements against each other: gate, bisect, soak."""
