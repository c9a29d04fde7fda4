"""Stores: where the objects are. `interface` says what one can do, the others are them."""
