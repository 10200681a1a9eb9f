"""Games in text, each a `TextGame`: rules, a level from the task's seed, noise from the episode's, an expert."""
