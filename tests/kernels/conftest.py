"""Kernels compute with one thread where a test does not say with how many: what it costs to meet is not in question."""

from __future__ import annotations

from one_thread import one_thread as one_thread
