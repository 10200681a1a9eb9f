"""Where the advantage mask and the loss mask decide: an early choice, a long observation, a critic and λ below 1."""
