"""Recordings of what was asked of servers, each format in a file of its own."""
