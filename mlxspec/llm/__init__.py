"""A language model as users meet it: prompts in, text events out, conversations, traces and reports."""
