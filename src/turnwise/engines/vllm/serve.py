"""A vLLM server as a child process: it ends when standard input does, that is with the process that started it.

python -m turnwise.engines.vllm.serve --model FOLDER --port 8000 ...        vLLM's own arguments
"""

import os
import runpy
import signal
import sys
import threading


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)  # vLLM's engine is a process of this group


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
