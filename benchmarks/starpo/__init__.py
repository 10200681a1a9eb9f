"""StarPO against StarPO-S over a recipe of one of the games, with other games to generalise to."""
