"""`turnwise serve-openenv`: an environment as an OpenEnv server."""

import argparse

from turnwise.cli.arguments import add_env, find_env, print_line

HELP = "serve an environment to any OpenEnv client"
EXPECTS = "one environment and its arguments a=b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8003, metavar="N", help="(default: 8003; 0 takes any free one)")
    parser.add_argument("--split", default="train", help="of tasks, if a client names none (default: train)")


def run(options: argparse.Namespace) -> int:
    from turnwise.http_server import listen
    from turnwise.serving.http import serve_until_signal
    from turnwise.serving.openenv import OpenEnvServer

    server = OpenEnvServer(find_env(options), split=options.split)
    socket, url = listen(options.host, options.port)
    serve_until_signal(server.app, socket, lambda: print_line(f"{options.env} at {url}; Ctrl-C stops it"))
    return 0
