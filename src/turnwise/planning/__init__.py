"""What a recipe costs on given hardware: a model fitted to measured runs, and a simulation of many workers."""
