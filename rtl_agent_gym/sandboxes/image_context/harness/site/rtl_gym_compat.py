"""What harnesses written for cocotb 1 ask of cocotb 2, and nothing more than that.

cocotb 2 gives a one-bit signal as a `Logic`, which lacks the conversions that wider ones have; `TestFailure` is gone;
and a define without a value is written as the text ``None``.
"""


def complete(module):
    """Add to a freshly loaded module of cocotb what older harnesses expect there."""
    {"cocotb.types._logic": _logic, "cocotb.result": _result, "cocotb_tools.runner": _runner}[module.__name__](module)


def _logic(module):
    logic = module.Logic
    if not hasattr(logic, "to_unsigned"):
        logic.to_unsigned = lambda self: int(self)
        logic.to_signed = lambda self: -int(self)
        logic.integer = property(int)
        logic.signed_integer = property(lambda self: -int(self))
        logic.binstr = property(str)


def _result(module):
    class TestFailure(AssertionError):
        """The test failed."""

        __test__ = False

    module.TestFailure = TestFailure


def _runner(module):
    def get_define_options(self, defines):
        return [
            f"-D{name}" if value is None else f"-D{name}={module._as_sv_literal(value)}"
            for name, value in defines.items()
        ]

    module.Icarus._get_define_options = get_define_options

    check = module.get_results

    def get_results(results_file):
        import rtl_gym_witness

        try:
            total, failed = check(results_file)
        except RuntimeError:
            rtl_gym_witness.tell(source="results", file=str(results_file), missing=True)
            raise
        rtl_gym_witness.tell(source="results", file=str(results_file), total=total, failed=failed)
        return total, failed

    module.get_results = get_results
