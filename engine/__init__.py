"""Paged memory, scheduler, model and stepping: what both kinds of pod share."""
