"""From written English to the sounds a voice is to say."""
