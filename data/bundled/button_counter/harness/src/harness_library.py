class Button:
    """A debouncer and an edge detector, as the given modules behave from edge to edge."""

    def __init__(self, stable_cycles):
        self.stable_cycles = stable_cycles
        self.reset()

    def reset(self):
        self.sync = [0, 0]
        self.stable = self.clean = self.previous = 0

    @property
    def rose(self):
        return int(self.clean and not self.previous)

    @property
    def fell(self):
        return int(self.previous and not self.clean)

    def clock(self, raw):
        level, last = self.sync[1], self.clean
        if level == self.clean:
            self.stable = 0
        elif self.stable == self.stable_cycles - 1:
            self.stable, self.clean = 0, level
        else:
            self.stable += 1
        self.sync = [raw, self.sync[0]]
        self.previous = last


class ButtonCounter:
    """What the top must show after each rising edge."""

    def __init__(self, stable_cycles, modulus):
        self.buttons = [Button(stable_cycles) for _ in range(3)]
        self.modulus = modulus
        self.number = self.wrapped = 0

    def clock(self, up, down, clear, reset):
        button_up, button_down, button_clear = self.buttons
        if reset:
            self.number = self.wrapped = 0
            for button in self.buttons:
                button.reset()
            return
        if button_clear.rose:
            self.number = self.wrapped = 0
        else:
            wanted = self.number + button_up.rose - button_down.fell
            self.number = wanted % self.modulus**2
            self.wrapped = int(wanted != self.number)
        for button, raw in zip(self.buttons, (up, down, clear), strict=True):
            button.clock(raw)

    def outputs(self):
        """(tens, ones, wrapped)"""
        return self.number // self.modulus, self.number % self.modulus, self.wrapped
