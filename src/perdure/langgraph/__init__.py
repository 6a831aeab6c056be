"""All code that uses LangGraph's classes: codec, saver, store, agent, views, custom auth."""
