"""The embedded task: multi-hop questions over a generated encyclopedia."""
