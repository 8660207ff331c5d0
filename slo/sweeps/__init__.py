"""Configurations compared: each started, and asked at the rates that a search for its highest one wants."""
