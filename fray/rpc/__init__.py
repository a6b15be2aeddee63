"""Actors that programs host themselves, found by name and called directly.

server = ActorServer(current_cluster())
server.register("inference", Model(path))
server.serve()

pool = ClusterResolver(current_cluster()).lookup("inference")
answers = pool.call().predict(prompts)

The transport is `fray_rpc`. Actors with jobs of their own (`fray.actor`) are served and called through this
package too. Reading order: `actor_server`, `resolver`, `pool`, `calling`, `balancer`, `future`.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
