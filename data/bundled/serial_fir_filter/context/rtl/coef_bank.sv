// Memory for the coefficients: one write port, one registered read port.
module coef_bank #(
  parameter N_TAPS = 8,
  parameter COEF_W = 10
) (
  input  logic                      clk,
  input  logic                      rst,
  input  logic                      we,
  input  logic [$clog2(N_TAPS)-1:0] waddr,
  input  logic signed [COEF_W-1:0]  wdata,
  input  logic [$clog2(N_TAPS)-1:0] raddr,
  output logic signed [COEF_W-1:0]  rdata
);

  logic signed [COEF_W-1:0] store[0:N_TAPS-1];
  integer i;

  always_ff @(posedge clk) begin
    if (rst) begin
      for (i = 0; i < N_TAPS; i = i + 1) store[i] <= '0;
      rdata <= '0;
    end else begin
      if (we && (waddr < N_TAPS)) store[waddr] <= wdata;
      if (raddr < N_TAPS) rdata <= store[raddr];
      else rdata <= '0;
    end
  end

endmodule
