"""What a vendor's library would offer for the bricks of a suite, on a device that need not be here.

Here stands the process that asks the library (``planner``) and the one that asks for a suite (``library_plans``).
Nothing is executed.
"""
