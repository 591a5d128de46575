"""Starts the scripted server with the command line of the real one."""

from ...start import main  # noqa: TID252 - the package has two names, see its docstring

if __name__ == "__main__":
    main()
