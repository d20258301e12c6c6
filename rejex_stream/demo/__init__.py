"""``rejex-stream demo``: a real water meter and a simulated wind farm through the whole product.

`datasets` holds both and says what is known to be wrong in them, `feeds` writes them with their
configs and runs them as ``rejex-stream run`` would, `turbine` is the farm.
What comes out is what any run leaves behind, and :mod:`rejex_stream.report` shows it.
"""
