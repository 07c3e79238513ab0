"""The demonstration without a key: the tiny models and the job that trains them."""
