"""What is kept of conversations on the disk: saved chats, the last exchange, answers to train on. Knows no model."""
