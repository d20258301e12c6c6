"""The parts of :mod:`rejex_stream.build`: values, Kafka, files, a whole run."""
