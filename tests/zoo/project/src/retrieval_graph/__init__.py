"""The layout of a retrieval agent: one graph stores documents, another one finds them."""
