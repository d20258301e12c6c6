"""Prequential evaluation of the engine, as shipped, on labelled sensor streams."""
