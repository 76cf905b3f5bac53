"""The chat without its screen: the conversation, the engine's thread, commands, numbers. Imports no Textual and no mlx."""
