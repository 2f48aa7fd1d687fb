"""Ranks beside rank 0: real processes that get each turn's new requests by broadcast and give back their responses."""
