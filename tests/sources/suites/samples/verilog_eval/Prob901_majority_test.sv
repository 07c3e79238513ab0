`timescale 1 ps/1 ps

module stimulus_gen (
	input clk,
	output logic a, b, c
);
	initial begin
		{a, b, c} = 3'd0;
		repeat (60) @(posedge clk, negedge clk) {a, b, c} = $random;
		#1 $finish;
	end
endmodule

module tb();
	int wrong, first_wrong, samples;
	reg clk = 0;
	initial forever #5 clk = ~clk;

	wire a, b, c, m_ref, m_dut;
	initial begin
		$dumpfile("wave.vcd");
		$dumpvars(1, stim1.clk, same, a, b, c, m_ref, m_dut);
	end

	stimulus_gen stim1 (.clk, .a(a), .b(b), .c(c));
	RefModule good1 (.a(a), .b(b), .c(c), .m(m_ref));
	TopModule top_module1 (.a(a), .b(b), .c(c), .m(m_dut));

	wire same = (m_ref === (m_ref ^ m_dut ^ m_ref)); // an X of the reference is equal to anything

	always @(posedge clk, negedge clk) begin
		samples++;
		if (!same) begin
			if (wrong == 0) first_wrong = $time;
			wrong++;
		end
	end

	final begin
		if (wrong) $display("Hint: Output '%s' has %0d mismatches, the first at %0d.", "m", wrong, first_wrong);
		else $display("Hint: Output '%s' has no mismatches.", "m");
		$display("Mismatches: %1d in %1d samples", wrong, samples);
	end

	initial begin
		#1000000
		$display("TIMEOUT");
		$finish();
	end
endmodule
