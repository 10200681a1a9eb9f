"""What single settings of a user's recipe are worth, on tasks that were split off training."""
