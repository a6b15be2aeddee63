from fray.backends.ray.client import RayClient as RayClient
