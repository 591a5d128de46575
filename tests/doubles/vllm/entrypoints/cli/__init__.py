"""Empty, as a package of a command line."""
