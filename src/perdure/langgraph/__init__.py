"""All that knows LangGraph's classes: codec, saver, store, agent, views, custom auth."""
