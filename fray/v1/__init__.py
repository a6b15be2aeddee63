"""What `fray` offers, under a second name; made by `make aliases`."""
