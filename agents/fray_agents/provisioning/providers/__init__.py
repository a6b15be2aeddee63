"""The providers, a module each; `fray_agents.provisioning.provider` has their interface."""
