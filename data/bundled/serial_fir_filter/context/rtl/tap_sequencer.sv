// Counts through the taps of one calculation.
module tap_sequencer #(
  parameter N_TAPS = 8
) (
  input  logic                      clk,
  input  logic                      rst,
  input  logic                      start,   // begin with index 0, also when active
  input  logic                      abort,   // stop; wins over start
  output logic                      active,
  output logic                      first,
  output logic                      last,
  output logic [$clog2(N_TAPS)-1:0] index
);

  localparam logic [$clog2(N_TAPS)-1:0] LAST_INDEX = N_TAPS - 1;

  assign first = active && (index == '0);
  assign last  = active && (index == LAST_INDEX);

  always_ff @(posedge clk) begin
    if (rst || abort) begin
      active <= 1'b0;
      index  <= '0;
    end else if (start) begin
      active <= 1'b1;
      index  <= '0;
    end else if (active) begin
      active <= !last;
      index  <= last ? '0 : index + 1'b1;
    end
  end

endmodule
