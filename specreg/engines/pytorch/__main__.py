"""`python -m specreg.engines.pytorch`: serves a model until a signal comes."""

import sys

from specreg.core.errors import SpecregError
from specreg.engines.pytorch.options import parse_options


def main() -> None:
    """Serve what the command line asks for; without it, exit with what is wrong."""
    options = parse_options(sys.argv[1:])
    try:
        from aiohttp import web  # noqa: PLC0415 - these need the extra

        from specreg.engines.pytorch.models import load_models  # noqa: PLC0415
        from specreg.engines.pytorch.server import App  # noqa: PLC0415

        app = App(load_models(options), options).application()
    except ImportError as error:
        sys.exit(
            f"reference engine: needs {error.name!r}, which isn't here; install"
            " specreg[reference], or let the suite make its environment"
        )
    except SpecregError as error:
        sys.exit(str(error))
    web.run_app(app, host="127.0.0.1", port=options.port, shutdown_timeout=0.5, access_log=None)


if __name__ == "__main__":
    main()
