"""Creates and removes the machines of pools: the providers, and the scaler that calls them."""
