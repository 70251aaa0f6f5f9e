"""What a result set was measured on and with, as a statement to hand on, and the same measured once more."""
