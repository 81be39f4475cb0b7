"""What happens between the clients and the server: who is available and takes part, faults, time."""
