`define period 10
module testbench;
	reg clk = 1, rst_n = 0;
	wire [3:0] count;
	reg [3:0] want = 0;
	integer bad = 0;

	step_counter #() dut (
		.clk(clk),
		.rst_n(rst_n),
		.count(count)
	);

	always #(`period / 2) clk <= ~clk;

	initial begin
		#(`period + 2) rst_n = 1;
		forever begin
			#(`period) want = want + 3;
			bad = (count == want) ? bad : bad + 1;
		end
	end

	initial #738 begin
		$write("===========");
		if (bad == 0) $write("Your Design Passed");
		else $write("Failed at %t", $time);
		$write("===========\n");
		$finish(0);
	end
endmodule
