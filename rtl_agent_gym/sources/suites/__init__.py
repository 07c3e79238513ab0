"""Other benchmarks, read from their published files: VerilogEval v2, RTLLM v2, and NotSoTiny in CVDP's format."""
