module square_table_tb();
	reg clk = 0;
	reg [3:0] n;
	wire [7:0] sq;
	reg [31:0] reference[0:15];
	integer i, error = 0, file, got, count;
	reg [7:0] told;

	square_table u0(clk, n, sq);
	always #5 clk = ~clk;

	initial begin
		$readmemh("squares.dat", reference);
		file = $fopen("./order.txt", "r");
		got = $fscanf(file, "%d", count);
		for (i = 0; i < count; i = i + 1) begin
			got = $fscanf(file, "%d %d", n, told);
			@(posedge clk); #1;
			error = (sq == reference[n] && sq == told) ? error : error + 1;
		end
		$fclose(file);
		if (error == 0 && count == 6) begin
			$display("===========Your Design Passed===========");
		end
		else begin
			$display("===========Error===========", error);
		end
		$stop;
	end
endmodule
