"""Supervised training on recorded episodes: `data` reads them, `loop` trains on them."""
