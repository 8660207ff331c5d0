"""OpenAI's Responses API on top of chats: items as messages, and answers as items again. Nothing is stored."""
