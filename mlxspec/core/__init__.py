"""The loop: propose, run, judge, keep; and what it stands on. Read ``decode`` first. Knows tokens and one model, no text and no files."""
