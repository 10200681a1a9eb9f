"""Environments written for other frameworks, played through our contract."""
