"""What is missed in how a model is run, not in what it computes: threads, pages, values that processors mind."""
