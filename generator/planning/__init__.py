"""Plans that a vendor's library offers for the bricks of a suite, for a device that need not be here.

``planner`` is the process that asks the library, and ``library_plans`` asks for a suite. Nothing is executed.
"""
