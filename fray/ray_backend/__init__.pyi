from fray.ray_backend.client import RayClient as RayClient
