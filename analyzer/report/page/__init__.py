"""The page: one HTML file with everything in it. What it says is put together here; templates, CSS and JS show it."""
