"""The kernels that ran for a model, their shares, and the units of the processor that they use."""
