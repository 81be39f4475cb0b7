"""What happens between the clients and the server: who takes part, faults, time."""
