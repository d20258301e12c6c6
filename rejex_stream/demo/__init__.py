"""``rejex-stream demo``: a real water meter and a simulated wind farm through the whole product.

`datasets` holds both, writes them with their configs and runs them as ``rejex-stream run`` would;
`turbine` is the farm.
"""
