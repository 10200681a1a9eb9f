"""Search over passages: indexes (BM25, dense, hybrid, a service), the `search` tool, and a server for others."""
