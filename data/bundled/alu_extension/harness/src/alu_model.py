"""What the ALU must do, in integers."""

OPCODES = 16


def signed(value, width):
    return value - (1 << width) if value >> (width - 1) else value


def operate(opcode, a, b, width):
    """(result, carry, overflow, saturated, illegal) of one operation on unsigned operands."""
    mask, low, high = (1 << width) - 1, -(1 << (width - 1)), (1 << (width - 1)) - 1
    n = b % width
    sa, sb = signed(a, width), signed(b, width)
    if opcode in (0, 1, 8, 9):
        subtract, saturating = opcode & 1, opcode >= 8
        exact = sa - sb if subtract else sa + sb
        outside = int(not low <= exact <= high)
        if saturating:
            return min(max(exact, low), high) & mask, 0, outside, outside, 0
        carry = int(a < b) if subtract else (a + b) >> width
        return exact & mask, carry, outside, 0, 0
    if opcode in (2, 3, 4, 5):
        return (a & b, a | b, a ^ b, ~a & mask)[opcode - 2], 0, 0, 0, 0
    if opcode == 6:
        return (a << n) & mask, (a >> (width - n)) & 1 if n else 0, 0, 0, 0
    if opcode == 7:
        return a >> n, (a >> (n - 1)) & 1 if n else 0, 0, 0, 0
    if opcode == 10:
        result = ((a << n) | (a >> (width - n))) & mask
        return result, result & 1 if n else 0, 0, 0, 0
    if opcode == 11:
        result = ((a >> n) | (a << (width - n))) & mask
        return result, result >> (width - 1) if n else 0, 0, 0, 0
    if opcode == 12:
        return (b, 1, 0, 0, 0) if sb < sa else (a, 0, 0, 0, 0)
    if opcode == 13:
        return a.bit_count(), 0, 0, 0, 0
    return 0, 0, 0, 0, 1


class AluModel:
    """The registers behind the outputs."""

    PORTS = ("out_valid", "result", "zero", "negative", "carry", "overflow", "parity", "illegal", "sat_sticky")

    def __init__(self, width):
        self.width = width
        self.reset()

    def reset(self):
        for port in self.PORTS:
            setattr(self, port, 0)

    def edge(self, in_valid, opcode, a, b, set_flags, clear_sticky):
        self.out_valid = in_valid
        saturated = 0
        if in_valid:
            self.result, carry, overflow, saturated, self.illegal = operate(opcode, a, b, self.width)
            if set_flags:
                self.zero = int(self.result == 0)
                self.negative = self.result >> (self.width - 1)
                self.parity = self.result.bit_count() & 1
                self.carry, self.overflow = carry, overflow
        if saturated:
            self.sat_sticky = 1
        elif clear_sticky:
            self.sat_sticky = 0
