"""From arrays and labels to `FederatedData`."""
