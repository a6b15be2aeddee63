class TrainWorker:
    def __init__(self, config):
        self.config = config

    def train_loop(self):
        return range(201)

    def save_checkpoint(self, path):
        print("saved", path, flush=True)
