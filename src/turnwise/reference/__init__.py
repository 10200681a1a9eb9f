"""The settings reference: what `turnwise settings` shows and docs/settings.md holds."""
