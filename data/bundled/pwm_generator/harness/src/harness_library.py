class PwmModel:
    """What the outputs must be after each rising edge."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.cycle = None  # position in the period, None while stopped
        self.top = 0
        self.duty = 0

    def edge(self, enable, top, duty):
        if not enable:
            self.cycle = None
        elif self.cycle is None or self.cycle == self.top:
            self.cycle, self.top, self.duty = 0, top, duty
        else:
            self.cycle += 1

    @property
    def pwm_out(self):
        return int(self.cycle is not None and self.cycle < self.duty)

    @property
    def period_start(self):
        return int(self.cycle == 0)


def known(signal, name):
    """The value of a signal as an integer; fails when a bit of it is X or Z."""
    value = signal.value
    assert value.is_resolvable, f"{name} is {value}: it has undefined bits"
    return int(value)
