"""A master for every channel and a model of the slave, advanced together one clock cycle at a time."""

from collections import deque

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

OKAY, SLVERR = 0, 2
ID, CTRL, SCRATCH, STATUS, ENABLE, WRITES = range(6)
LATEST = 3  # edges from "everything is there" to the answer
PATIENCE = 4  # edges that may see an item before it is accepted


class Registers:
    """The register file and what a write does to it."""

    def __init__(self):
        self.ctrl = self.scratch = self.status = self.enable = self.writes = 0

    def read(self, address):
        values = (0x52544C31, self.ctrl, self.scratch, self.status, self.enable, self.writes)
        word = address >> 2
        return (values[word], OKAY) if word < len(values) else (0, SLVERR)

    def clock(self, events, write=None):
        """One edge; `write` is (address, data, strobe) of a write carried out there. Returns its response."""
        clear, response = 0, None
        if write is not None:
            address, data, strobe = write
            mask = sum(0xFF << 8 * lane for lane in range(4) if strobe >> lane & 1)
            word, response = address >> 2, OKAY
            if word == CTRL:
                self.ctrl = (self.ctrl & ~mask | data & mask) & 0xFF
            elif word == SCRATCH:
                self.scratch = self.scratch & ~mask | data & mask
            elif word == STATUS:
                clear = data & mask
            elif word == ENABLE:
                self.enable = (self.enable & ~mask | data & mask) & 0xFF
            else:
                response = SLVERR
            if response == OKAY:
                self.writes = (self.writes + 1) & 0xFFFF
        self.status = self.status & ~clear & 0xFF | events
        return response


class Channel:
    """A source of items on one channel: each has a delay in cycles, then stays valid until it is taken."""

    def __init__(self, dut, prefix, fields):
        self.valid = getattr(dut, f"{prefix}valid")
        self.ready = getattr(dut, f"{prefix}ready")
        self.fields = [getattr(dut, field) for field in fields]
        self.todo, self.offered, self.seen = deque(), None, 0

    def drive(self):
        if self.offered is None and self.todo:
            delay, item = self.todo[0]
            if delay > 0:
                self.todo[0] = (delay - 1, item)
            else:
                self.offered, self.seen = self.todo.popleft()[1], 0
        self.valid.value = int(self.offered is not None)
        if self.offered is not None:
            for field, value in zip(self.fields, self.offered, strict=True):
                field.value = value

    def transfer(self, ready, outstanding):
        """The item that the coming edge transfers, or None; fails when the slave took too long."""
        if self.offered is None:
            return None
        if ready:
            item, self.offered = self.offered, None
            return item
        if not outstanding:
            self.seen += 1
            assert self.seen < PATIENCE, f"{self.valid._name} not accepted within {PATIENCE} edges"
        return None


class Side:
    """What has been accepted on the write or the read side and waits for its answer."""

    def __init__(self, name):
        self.name, self.waiting, self.free_since = name, None, 0

    def check(self, valid, payload, taken, ready_since, edge):
        """Judge the response channel after an edge. Returns whether a new response has come up."""
        if self.waiting is not None and not taken:
            assert valid, f"{self.name}valid fell before the response was taken"
            assert payload == self.waiting, f"{self.name} response changed from {self.waiting} to {payload}"
            return False
        if taken:
            self.waiting, self.free_since = None, edge
        if valid:
            assert ready_since is not None, f"{self.name}valid without anything to answer"
            self.waiting = payload
            return True
        if ready_since is not None:
            late = edge - max(ready_since, self.free_since)
            assert late < LATEST, f"no {self.name}valid within {LATEST} edges"
        return False


class Bench:
    def __init__(self, dut):
        self.dut, self.edge = dut, 0
        self.aw = Channel(dut, "aw", ["awaddr"])
        self.w = Channel(dut, "w", ["wdata", "wstrb"])
        self.ar = Channel(dut, "ar", ["araddr"])
        self.ready = {"b": lambda: 1, "r": lambda: 1}
        self.events = lambda: 0
        self.forget()

    def forget(self):
        """What reset does to the model; the channels must be quiet."""
        self.registers = Registers()
        self.write_side, self.read_side = Side("b"), Side("r")
        self.addresses, self.data, self.reads = deque(), deque(), deque()
        for channel in (self.aw, self.w, self.ar):
            channel.todo.clear()
            channel.offered = None

    def sample(self, *names):
        values = []
        for name in names:
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"{name} is {value}"
            values.append(int(value))
        return values

    async def start(self):
        dut = self.dut
        dut.aclk.value = 0
        dut.awaddr.value = dut.wdata.value = dut.wstrb.value = dut.araddr.value = 0
        await self.reset(drive_only=True)
        await Timer(5, unit="ns")
        cocotb.start_soon(Clock(dut.aclk, 10, unit="ns").start())
        await FallingEdge(dut.aclk)
        await self.reset()

    async def reset(self, drive_only=False):
        """One edge in reset, with events and ready inputs at 1."""
        dut = self.dut
        before = None if drive_only else self.sample("ctrl", "irq", "bvalid", "rvalid")
        self.forget()
        dut.aresetn.value = 0
        dut.awvalid.value = dut.wvalid.value = dut.arvalid.value = 0
        dut.bready.value = dut.rready.value = 1
        dut.events.value = 0xFF
        if drive_only:
            return
        await Timer(2, unit="ns")
        assert self.sample("ctrl", "irq", "bvalid", "rvalid") == before, "reset acted before a rising edge"
        await RisingEdge(dut.aclk)
        self.edge += 1
        await Timer(2, unit="ns")
        self.check_outputs("in reset")
        assert self.sample("bvalid", "rvalid") == [0, 0], "a response in reset"
        await FallingEdge(dut.aclk)
        dut.aresetn.value = 1

    def check_outputs(self, when):
        expected = [self.registers.ctrl, int(self.registers.status & self.registers.enable != 0)]
        found = self.sample("ctrl", "irq")
        assert found == expected, f"{when}: [ctrl, irq] is {found}, expected {expected}"
        self.sample("awready", "wready", "arready", "bvalid", "rvalid")

    async def step(self):
        """One rising edge: drive the inputs, see what is transferred, judge what comes out."""
        dut = self.dut
        for channel in (self.aw, self.w, self.ar):
            channel.drive()
        bready, rready, events = self.ready["b"](), self.ready["r"](), self.events()
        dut.bready.value, dut.rready.value, dut.events.value = bready, rready, events
        await Timer(4, unit="ns")
        self.check_outputs("before an edge")
        awready, wready, arready, bvalid, rvalid = self.sample("awready", "wready", "arready", "bvalid", "rvalid")
        assert bvalid == int(self.write_side.waiting is not None), "bvalid moved between two edges"
        assert rvalid == int(self.read_side.waiting is not None), "rvalid moved between two edges"
        self.edge += 1
        answering = self.write_side.waiting is not None
        if (item := self.aw.transfer(awready, bool(self.addresses) or answering)) is not None:
            self.addresses.append((self.edge, item[0]))
        if (item := self.w.transfer(wready, bool(self.data) or answering)) is not None:
            self.data.append((self.edge, item))
        if (item := self.ar.transfer(arready, bool(self.reads) or self.read_side.waiting is not None)) is not None:
            self.reads.append((self.edge, item[0]))
        await RisingEdge(dut.aclk)
        await Timer(2, unit="ns")
        self.judge_read(bool(rvalid and rready))
        self.judge_write(bool(bvalid and bready), events)
        self.check_outputs("after an edge")
        await FallingEdge(dut.aclk)

    def judge_read(self, taken):
        valid = self.sample("rvalid")[0]
        payload = tuple(self.sample("rdata", "rresp")) if valid else None
        ready_since = self.reads[0][0] if self.reads else None
        if self.read_side.check(valid, payload, taken, ready_since, self.edge):
            address = self.reads.popleft()[1]
            expected = self.registers.read(address)
            assert payload == expected, f"read {address:#04x}: (rdata, rresp) is {payload}, expected {expected}"

    def judge_write(self, taken, events):
        valid = self.sample("bvalid")[0]
        payload = self.sample("bresp")[0] if valid else None
        ready_since = max(self.addresses[0][0], self.data[0][0]) if self.addresses and self.data else None
        if self.write_side.check(valid, payload, taken, ready_since, self.edge):
            write = (self.addresses.popleft()[1], *self.data.popleft()[1])
            expected = self.registers.clock(events, write)
            assert payload == expected, f"write {write[0]:#04x}: bresp is {payload}, expected {expected}"
        else:
            self.registers.clock(events)

    def write(self, address, data, strobe=0xF, address_delay=0, data_delay=0):
        self.aw.todo.append((address_delay, (address,)))
        self.w.todo.append((data_delay, (data, strobe)))

    def read(self, address, delay=0):
        self.ar.todo.append((delay, (address,)))

    def busy(self):
        channels = any(channel.todo or channel.offered is not None for channel in (self.aw, self.w, self.ar))
        sides = self.write_side.waiting is not None or self.read_side.waiting is not None
        return channels or sides or self.addresses or self.data or self.reads

    async def drain(self):
        """Steps until everything is answered and taken."""
        while self.busy():
            await self.step()
        await self.step()
