class SpiModel:
    """The outputs of the master after each rising edge, written from the time table of the specification."""

    PORTS = ("busy", "done", "rx_data", "sclk", "mosi", "cs_n")

    def __init__(self, width):
        self.width = width
        self.reset()

    def reset(self):
        self.busy = self.done = self.rx_data = self.sclk = self.mosi = 0
        self.cs_n = 1
        self.age = 0  # edges since the start of the transfer

    def edge(self, start, tx_data, cpol, cpha, clk_div, miso):
        self.done = 0
        if not self.busy:
            self.sclk = cpol
            if start:
                self._begin(tx_data, cpha, clk_div + 1)
            return
        self.age += 1
        number, rest = divmod(self.age, self.half)
        if rest:
            return
        if number == 2 * self.width + 1:
            self.busy, self.cs_n, self.mosi, self.done = 0, 1, 0, 1
            self.rx_data = int("".join(map(str, self.received)), 2)
            return
        self.sclk ^= 1
        leading = number % 2 == 1
        if leading != bool(self.cpha):
            self.received.append(miso)
        elif self.to_send:
            self.mosi = self.to_send.pop(0)

    def _begin(self, tx_data, cpha, half):
        self.busy, self.cs_n, self.age, self.half, self.cpha = 1, 0, 0, half, cpha
        self.received = []
        self.to_send = [int(bit) for bit in f"{tx_data:0{self.width}b}"]
        self.mosi = 0 if cpha else self.to_send.pop(0)
