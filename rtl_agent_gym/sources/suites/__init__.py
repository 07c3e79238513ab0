"""Other benchmarks, from their files as they publish them: VerilogEval v2, RTLLM v2, and NotSoTiny in CVDP's format."""
