"""Fixtures: a Valkey server, a tokenizer folder, and the way to start a router before fake pods."""

from router_fixtures import model, start, valkey

__all__ = ["model", "start", "valkey"]
