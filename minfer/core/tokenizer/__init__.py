"""Text to token ids and back: one interface over all kinds of files, special tokens, chats, the streaming decoder."""

from minfer.core.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
