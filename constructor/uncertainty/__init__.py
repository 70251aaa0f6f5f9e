"""The uncertainty of a composed latency: intervals, ratios of alternating visits, and fitted errors."""
