"""How a round is computed: lanes, solves, devices, processes, populations."""
