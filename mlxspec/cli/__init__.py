"""The command line, a file per verb. ``main`` finds the verb; importing it loads no mlx."""
