`timescale 1 ps/1 ps

module stimulus_gen (
	input clk,
	output logic [63:0] in
);
	initial begin
		in = 0;
		repeat (100) @(posedge clk, negedge clk) in <= {$random, $random};
		#1 $finish;
	end
endmodule

module tb();
	int wrong, samples;
	reg clk = 0;
	initial forever #5 clk = ~clk;

	wire [63:0] in;
	wire [6:0] out_ref, out_dut;

	initial begin
		$dumpfile("wave.vcd");
		$dumpvars(1, stim1.clk, mismatch, in, out_ref, out_dut);
	end

	wire match;
	wire mismatch = ~match;

	stimulus_gen stim1 (.clk, .in);
	RefModule good1 (.in, .out(out_ref));
	TopModule top_module1 (.in, .out(out_dut));

	assign match = out_ref === (out_ref ^ out_dut ^ out_ref);

	always @(posedge clk, negedge clk) begin
		samples++;
		if (mismatch) wrong++;
	end

	final $display("Mismatches: %1d in %1d samples", wrong, samples);

	initial begin
		#1000000
		$display("TIMEOUT");
		$finish();
	end
endmodule
