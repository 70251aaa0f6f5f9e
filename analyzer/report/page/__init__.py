"""The page: one HTML file with its data, templates, CSS and JS."""
