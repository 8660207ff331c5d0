"""A Valkey server and a tokenizer folder for these tests, and the way to start a router before fake pods."""

from router_fixtures import model, start, valkey

__all__ = ["model", "start", "valkey"]
