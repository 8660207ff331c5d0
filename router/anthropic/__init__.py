"""Anthropic's Messages API on top of chats: blocks as messages, and answers as blocks again. Nothing is stored."""
