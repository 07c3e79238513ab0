"""The demonstration without an API key: the shipped models and the jobs that train them."""
