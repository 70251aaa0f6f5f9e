"""Answers of commands: a module per subject, with the keys and tables of the command line's reference."""
