
module RefModule (
  input clk,
  input reset,
  output reg [2:0] q
);

  always @(posedge clk)
    q <= (reset || q == 3'd4) ? 3'd0 : q + 3'd1;

endmodule
