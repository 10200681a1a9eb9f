"""vLLM as an engine: in this process (`engine.py`), or as servers that speak token ids (`servers.py`)."""
