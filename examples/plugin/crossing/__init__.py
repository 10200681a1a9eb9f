"""A plug-in for turnwise: an environment, rewards, an estimator and a tracker, none of them part of turnwise."""
