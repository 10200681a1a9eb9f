"""What engines and the learner both compute with: transfers and CUDA graphs, attention over packed rows, scoring of
tokens, compiled or checkpointed layers, and the settings of the process.

Nothing here knows an engine, a learner or a recipe; a function whose error names a setting takes its key.
"""
