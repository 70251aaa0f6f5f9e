"""A model beside a changed one, or beside itself under other settings: do they compute the same, and which is faster?

Both are visited in turn, each in a worker of its settings; nothing is stored.
"""
