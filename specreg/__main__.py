"""`python -m specreg`, for where the command is not installed."""

from specreg.cli import main

if __name__ == "__main__":
    main()
