"""From a name to a model in memory: what is here, what is fetched, what is read, and whether it fits."""
