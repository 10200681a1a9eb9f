"""A sandbox for code that a model wrote: its own process, held by what the kernel offers."""
