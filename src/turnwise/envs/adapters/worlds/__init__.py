"""What runs in a child process, beside the foreign package itself: each module serves one family, in JSON."""
