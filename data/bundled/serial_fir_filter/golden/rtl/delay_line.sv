// The latest DEPTH samples; number 0 is the newest.
module delay_line #(
  parameter DEPTH = 8,
  parameter WIDTH = 12
) (
  input  logic                     clk,
  input  logic                     rst,
  input  logic                     clear,
  input  logic                     shift,
  input  logic signed [WIDTH-1:0]  din,
  input  logic [$clog2(DEPTH)-1:0] raddr,
  output logic signed [WIDTH-1:0]  dout
);

  logic signed [WIDTH-1:0] samples[0:DEPTH-1];
  integer i;

  assign dout = (raddr < DEPTH) ? samples[raddr] : '0;

  always_ff @(posedge clk) begin
    if (rst || clear) begin
      for (i = 0; i < DEPTH; i = i + 1) samples[i] <= '0;
    end else if (shift) begin
      samples[0] <= din;
      for (i = 1; i < DEPTH; i = i + 1) samples[i] <= samples[i-1];
    end
  end

endmodule
