"""`python -m specreg.engines.pytorch`: serves a model until a signal comes."""

import sys

from specreg.core.errors import SpecregError
from specreg.engines.pytorch.options import parse_options


def main() -> int:
    """The status to exit with: 0 after a signal, 2 if it can't be served."""
    try:
        options = parse_options(sys.argv[1:])
        from aiohttp import web  # noqa: PLC0415 - these need the extra

        from specreg.engines.pytorch.models import load_models  # noqa: PLC0415
        from specreg.engines.pytorch.server import App  # noqa: PLC0415

        loaded = load_models(options)
    except ImportError as error:
        words = f"reference engine: needs {error.name!r}, which isn't here ({error})"
        return _refuse(
            f"{words}; install specreg[reference], or let the suite make its environment"
        )
    except SpecregError as error:
        return _refuse(str(error))
    try:
        web.run_app(
            App(loaded, options).application(),
            host=options.host,
            port=options.port,
            shutdown_timeout=0.5,
            access_log=None,
        )
    except OSError as error:
        where = f"{options.host}:{options.port}"
        return _refuse(f"{where}: can't be listened on, {error}; choose another --port")
    return 0


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - a program's own words
    return 2


if __name__ == "__main__":
    sys.exit(main())
