class Stage:
    """A queue of at most two words with a registered `ready`."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.queue, self.ready = [], 0

    def edge(self, flush, in_valid, in_data, out_ready):
        take = in_valid and self.ready
        if self.queue and out_ready:
            self.queue.pop(0)
        if take:
            self.queue.append(in_data)
        if flush:
            self.queue.clear()
        self.ready = int(len(self.queue) < 2)


class Chain:
    """Stages in a row; one stage alone is a chain of depth 1."""

    def __init__(self, depth):
        self.stages = [Stage() for _ in range(depth)]
        self.after_reset = True

    def reset(self):
        for stage in self.stages:
            stage.reset()
        self.after_reset = True

    def edge(self, flush, in_valid, in_data, out_ready):
        valids = [in_valid] + [bool(stage.queue) for stage in self.stages]
        words = [in_data] + [stage.queue[0] if stage.queue else None for stage in self.stages]
        readies = [stage.ready for stage in self.stages[1:]] + [out_ready]
        for index, stage in enumerate(self.stages):
            stage.edge(flush, valids[index], words[index], readies[index])
        self.after_reset = False

    @property
    def in_ready(self):
        return self.stages[0].ready

    @property
    def out_valid(self):
        return int(bool(self.stages[-1].queue))

    @property
    def out_data(self):
        """The word at the output; None where it may be anything."""
        if self.stages[-1].queue:
            return self.stages[-1].queue[0]
        return 0 if self.after_reset else None

    @property
    def occupancy(self):
        return sum(len(stage.queue) for stage in self.stages)
