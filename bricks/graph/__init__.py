"""The ModelGraph: a model as a DAG of layers with a type on every edge, and what describes it as a whole.

Here stands how it is assembled, what a runtime executes for it (``executed``), who reads what in it (``flow``), what
it touches (``footprint``), how soon iterations touch it again (``reuse``), and what models share (``similarity``).
Where it is cut stands in ``cutting``.
"""
