`timescale 1 ps/1 ps
`define EDGES 300

module stimulus_gen (
	input clk,
	output reg reset,
	input tb_match
);
	task start_over;
		@(posedge clk) reset <= 1;
		@(negedge clk) if (!tb_match) $display("Hint: q is wrong at the reset.");
		@(posedge clk) reset <= 0;
	endtask

	initial begin
		reset <= 1;
		repeat (3) @(posedge clk);
		start_over();
		repeat (12) @(posedge clk);
		repeat (`EDGES) @(posedge clk, negedge clk) reset <= !($random & 15);
		#1 $finish;
	end
endmodule

module tb();
	typedef struct packed {
		int errors;
		int errortime;
		int clocks;
	} stats;
	stats stats1;

	reg clk = 0;
	initial forever #5 clk = ~clk;

	logic reset;
	logic [2:0] q_ref;
	logic [2:0] q_dut;
	wire tb_match;

	stimulus_gen stim1 (.clk, .*, .reset);
	RefModule good1 (.clk, .reset, .q(q_ref));
	TopModule top_module1 (.clk, .reset, .q(q_dut));

	assign tb_match = ({q_ref} === ({q_ref} ^ {q_dut} ^ {q_ref}));

	always @(posedge clk, negedge clk) begin
		stats1.clocks++;
		if (!tb_match) begin
			if (stats1.errors == 0) stats1.errortime = $time;
			stats1.errors++;
		end
	end

	final begin
		$display("Hint: Total mismatched samples is %1d out of %1d samples\n", stats1.errors, stats1.clocks);
		$display("Mismatches: %1d in %1d samples", stats1.errors, stats1.clocks);
	end

	initial begin
		#1000000
		$display("TIMEOUT");
		$finish();
	end
endmodule
