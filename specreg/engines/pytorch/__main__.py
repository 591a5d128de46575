"""`python -m specreg.engines.pytorch`: serve a model until a signal ends the process."""

import sys

from specreg.engines.pytorch.options import exit_on_error, parse_options


def main() -> None:
    """Serve the models of the command line until a signal comes."""
    options = parse_options(sys.argv[1:])
    with exit_on_error():
        from aiohttp import web  # noqa: PLC0415 - these need the extra

        from specreg.engines.pytorch.decoding import load_models  # noqa: PLC0415
        from specreg.engines.pytorch.server import App  # noqa: PLC0415

        app = App(load_models(options), options).application()

    web.run_app(app, host="127.0.0.1", port=options.port, shutdown_timeout=0.5, access_log=None)


if __name__ == "__main__":
    main()
