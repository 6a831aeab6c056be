"""Items: values of agents by namespace and key, kept beyond a thread."""
