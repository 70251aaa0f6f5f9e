"""Static types of all values, and constants that decide shapes: shape inference, folding, integer arithmetic."""
