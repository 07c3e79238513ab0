"""Supervised training on recorded episodes: `plan` reads them, `loop` trains on them."""
