"""A voice as users meet it: text in, sound events out; and the rules that judge a draft by its sound."""
