def known(port, signed=False):
    """A port's value as an integer; fails when a bit of it is X or Z."""
    value = port.value
    assert value.is_resolvable, f"{port._name} is {value}"
    return value.to_signed() if signed else int(value)


class FirModel:
    """The registers of the filter that can be seen from outside, edge by edge."""

    def __init__(self, N_TAPS, DATA_W, COEF_W, SHIFT, OUT_W):
        self.taps, self.shift = N_TAPS, SHIFT
        self.low, self.high = -(1 << (OUT_W - 1)), (1 << (OUT_W - 1)) - 1
        self.reset()

    def reset(self):
        self.samples = [0] * self.taps
        self.coefficients = [0] * self.taps
        self.remaining = 0  # cycles until the result of the running calculation; 0 when idle
        self.out_valid = self.out_data = self.out_sat = 0

    @property
    def busy(self):
        return int(self.remaining > 0)

    def in_ready(self, flush):
        return int(not self.busy and not flush)

    def edge(self, flush, write, sample):
        """`write` is (address, value) or None, `sample` an integer or None."""
        was_busy = self.busy
        if write and not was_busy and write[0] < self.taps:
            self.coefficients[write[0]] = write[1]
        self.out_valid = 0
        if flush:
            self.samples, self.remaining = [0] * self.taps, 0
            return
        if was_busy:
            self.remaining -= 1
            if not self.remaining:
                self._finish()
        elif sample is not None:
            self.samples = [sample, *self.samples[:-1]]
            self.remaining = self.taps + 3

    def _finish(self):
        total = sum(c * x for c, x in zip(self.coefficients, self.samples, strict=True))
        rounded = (total + ((1 << self.shift) >> 1)) >> self.shift
        self.out_data = min(max(rounded, self.low), self.high)
        self.out_sat = int(self.out_data != rounded)
        self.out_valid = 1
