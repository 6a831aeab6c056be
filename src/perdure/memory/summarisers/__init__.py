"""How stretches of events become a title, bullets and keywords: without a model, or by an endpoint."""
