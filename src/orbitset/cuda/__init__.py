"""Everything that knows CUDA: kernels of our own, the fused network, recorded training steps, Adam.

`orbitset.dispatch` is the only door. This folder can be deleted: plain torch code does all that is done here.
"""
