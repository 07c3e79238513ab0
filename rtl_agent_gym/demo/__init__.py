"""The demonstration without an API key: the tiny models and the run that trains them."""
