"""Figures of runs on pretrained models, read from the runs' own files: `python -m benchmarks.real`."""
