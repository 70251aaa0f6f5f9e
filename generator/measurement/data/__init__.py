"""What a model's own values do to its latency, against seeded ones.

Here stands the measurement (``data_effects``) and its value (``model_effect``).
"""
