"""What training costs and gains beyond one process that samples, then updates."""
