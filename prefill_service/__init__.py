"""The prefill pod."""
