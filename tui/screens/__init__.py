"""The screens of the chat and its windows."""
