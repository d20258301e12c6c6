"""The experiments of the RejEx paper (NeurIPS 2023), run again and carried further."""
