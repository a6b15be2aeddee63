"""Makes and removes the machines of pools: providers, and the scaler that calls them."""
