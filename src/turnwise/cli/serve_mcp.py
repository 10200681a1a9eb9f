"""`turnwise serve-mcp`: an environment, or tools by themselves, over MCP."""

import argparse

from turnwise.cli.arguments import add_env, find_env, print_line

HELP = "serve an environment or tools to any MCP client"
EXPECTS = "one environment and its arguments a=b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    parser.add_argument("--tools", action="store_true", help="ENV names a list of tools, such as file.py:tools")
    parser.add_argument("--http", action="store_true", help="over streamable HTTP, not stdin and stdout")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8002, metavar="N", help="(default: 8002; 0 takes any free one)")
    parser.add_argument("--split", default="train", help="of tasks, if a client names none (default: train)")


def run(options: argparse.Namespace) -> int:
    from turnwise.serving.mcp import ServedEnv, ServedTools, find_tools, make_server
    from turnwise.serving.mcp_transports import serve_http, serve_stdio

    if options.tools:
        tools = find_tools(options.env)
        server = make_server(lambda: ServedTools(tools), name=options.env)
    else:
        env = find_env(options)
        server = make_server(lambda: ServedEnv(env, split=options.split), name=type(env).__name__)
    if options.http:
        ready = f"{options.env} at %s; Ctrl-C stops it"
        serve_http(server, host=options.host, port=options.port, ready=lambda url: print_line(ready % url))
    else:
        serve_stdio(server)
    return 0
