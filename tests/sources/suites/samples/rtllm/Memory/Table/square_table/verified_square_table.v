module square_table(input clk, input [3:0] n, output reg [7:0] sq);
    always @(posedge clk) sq <= n * n;
endmodule
