"""The prefill pod: builds prompts' KV chunk by chunk and ships it to decode pods."""
