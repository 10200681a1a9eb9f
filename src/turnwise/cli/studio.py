"""`turnwise studio`: the local web page that shows runs, their curves, and every token of their trajectories."""

import argparse
from pathlib import Path

from turnwise.cli.arguments import print_line

HELP = "open runs in the browser: curves, trajectories, tokens"
EXPECTS = "folders with runs in them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", default=["runs"], help="folders with runs in them, or runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="(default: 8080; 0 takes any free one)")
    parser.add_argument("--token", metavar="TEXT", help="the token to ask for (default: a new random one)")
    parser.add_argument("--no-token", action="store_true", help="ask for none; for 127.0.0.1 alone")


def run(options: argparse.Namespace) -> int:
    from turnwise.errors import ConfigError
    from turnwise.studio.server import Studio, make_token

    if options.no_token and options.host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(f"--no-token: {options.host} is not this machine alone; leave it out, or --host")
    token = None if options.no_token else options.token or make_token()
    studio = Studio([Path(folder) for folder in options.runs], host=options.host, port=options.port, token=token)
    print_line(f"the studio is at {studio.address}")
    print_line("Ctrl-C stops it")
    studio.run()
    return 0
