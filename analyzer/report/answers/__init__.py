"""What commands answer: one module per subject, rows with the documented keys (docs/cli.md), and tables."""
