"""The roofline: how fast each brick could be here, from its work and the measured ceilings."""
