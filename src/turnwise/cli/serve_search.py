"""`turnwise serve-search`: a corpus for search agents, over HTTP."""

import argparse

from turnwise.cli.arguments import print_line

HELP = "serve a corpus to search agents over HTTP"
EXPECTS = "one corpus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", help="a .jsonl, .jsonl.gz or .parquet file, or a folder of .txt and .md files")
    parser.add_argument("--index", choices=["bm25", "dense", "hybrid"], default="bm25", help="(default: bm25)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="(default: 8000; 0 takes any free one)")
    parser.add_argument("--topk", type=int, default=3, metavar="N", help="hits if a request names none (default: 3)")
    parser.add_argument(
        "--bm25",
        action="append",
        default=[],
        metavar="a=b",
        help="for bm25 and hybrid, such as title_weight=3 or b=0.4",
    )
    parser.add_argument("--encoder", metavar="NAME", help="for dense and hybrid: a folder or a model on the hub")
    parser.add_argument("--query-prefix", default="", metavar="TEXT", help="such as 'query: ' for e5 models")
    parser.add_argument("--passage-prefix", default="", metavar="TEXT", help="such as 'passage: ' for e5 models")
    parser.add_argument("--cache", default="auto", metavar="DIR", help="where indexes are kept; off: nowhere")


def run(options: argparse.Namespace) -> int:
    from turnwise.settings import parse_settings
    from turnwise.tools.search.bm25 import Bm25Settings
    from turnwise.tools.search.retrieval import check_k
    from turnwise.tools.search.server import SearchServer, serve_search
    from turnwise.tools.search.tool import open_index

    check_k(options.topk)
    encoder = None
    if options.encoder or options.query_prefix or options.passage_prefix:
        prefixes = {"query_prefix": options.query_prefix, "passage_prefix": options.passage_prefix}
        encoder = {"encoder": options.encoder or "", **prefixes}
    bm25 = parse_settings(Bm25Settings, {}, overrides=options.bm25, source="--bm25") if options.bm25 else None
    index = open_index(options.corpus, options.index, cache=options.cache, bm25=bm25, encoder=encoder)
    server = SearchServer(index, host=options.host, port=options.port, topk=options.topk)
    serve_search(server, lambda url: print_line(f"{len(index.passages)} passages at {url}/retrieve; Ctrl-C stops it"))
    return 0
