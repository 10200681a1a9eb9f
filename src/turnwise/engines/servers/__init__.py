"""Engines behind HTTP: servers that take token ids and give ids with logprobs, a conversation at the same one."""
