"""What code of Fray has at run time in any process: a client, an agent, a task or a server.

`variables` reads environment variables. `threads` starts threads of which none ends silently. `directories` are those
of this user alone, and `network` says where servers listen. `pickling` serializes values with the code that a reader
cannot import; `users_main` and `spawned_main` are the `__main__` of a task's processes. `current_task` is the task in
which this code runs.

`forks` starts processes while no other thread forks. This package imports no other one but the layouts. So a program
that calls an actor or uses a queue loads no code of agents.
"""
