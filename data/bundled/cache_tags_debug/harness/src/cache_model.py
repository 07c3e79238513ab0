READ, WRITE, INVALIDATE, FLUSH = range(4)
NOTHING = {"resp_hit": 0, "resp_way": 0, "evict_valid": 0, "evict_dirty": 0, "evict_tag": 0}


class CacheSet:
    """Four ways, each None or a list [tag, dirty], and their order of recency (last = most recent)."""

    def __init__(self):
        self.ways, self.order = [None] * 4, [0, 1, 2, 3]

    def find(self, tag):
        return next((way for way, line in enumerate(self.ways) if line and line[0] == tag), None)

    def access(self, tag, write):
        way, response = self.find(tag), dict(NOTHING)
        if way is None:
            way = self.ways.index(None) if None in self.ways else self.order[0]
            if self.ways[way]:
                response.update(evict_valid=1, evict_tag=self.ways[way][0], evict_dirty=self.ways[way][1])
            self.ways[way] = [tag, write]
        else:
            response["resp_hit"] = 1
            self.ways[way][1] |= write
        self.order.remove(way)
        self.order.append(way)
        response["resp_way"] = way
        return response

    def invalidate(self, tag):
        way = self.find(tag)
        if way is None:
            return dict(NOTHING)
        (_, dirty), self.ways[way] = self.ways[way], None
        return {"resp_hit": 1, "resp_way": way, "evict_valid": 1, "evict_dirty": dirty, "evict_tag": tag}


class CacheModel:
    def __init__(self, sets):
        self.count = sets
        self.reset()

    def reset(self):
        self.sets = [CacheSet() for _ in range(self.count)]
        self.slot, self.steps = None, 0
        self.response = None  # the response that is present
        self.after_reset = True

    def _finish(self, resp_ready):
        free = self.response is None or resp_ready
        if self.slot is None or not free:
            return False
        return self.slot[0] != FLUSH or self.steps == self.count - 1

    def req_ready(self, resp_ready):
        return int(self.slot is None or self._finish(resp_ready))

    def edge(self, request, resp_ready):
        """`request` is (op, set, tag) or None."""
        self.after_reset = False
        ready, finish = self.req_ready(resp_ready), self._finish(resp_ready)
        free = self.response is None or resp_ready
        if resp_ready:
            self.response = None
        if finish:
            self.response = self._execute(*self.slot)
            self.slot = None
        elif self.slot is not None and free:
            self.steps += 1
        if request is not None and ready:
            self.slot, self.steps = request, 0

    def _execute(self, op, index, tag):
        if op == FLUSH:
            dirty = int(any(line and line[1] for cache_set in self.sets for line in cache_set.ways))
            for cache_set in self.sets:
                cache_set.ways = [None] * 4
            return {**NOTHING, "evict_dirty": dirty}
        if op == INVALIDATE:
            return self.sets[index].invalidate(tag)
        return self.sets[index].access(tag, int(op == WRITE))
