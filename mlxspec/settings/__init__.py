"""Every option once, with its help; the config file and the environment. Knows no model."""
