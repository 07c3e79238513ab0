"""Supervised training on recorded episodes: `data` reads them; `loop.SupervisedLoop` trains on them."""
