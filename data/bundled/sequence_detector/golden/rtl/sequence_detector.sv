module sequence_detector #(
  parameter CNT_W = 8
) (
  input  logic             clk,
  input  logic             rst,
  input  logic             bit_valid,
  input  logic             bit_in,
  input  logic             overlap,
  input  logic             clear,
  output logic             match,
  output logic             match_q,
  output logic [2:0]       progress,
  output logic [CNT_W-1:0] match_count
);

  // Each state is named after the end of the stream that it stands for; its code is the progress.
  localparam logic [2:0] NONE    = 3'd0;
  localparam logic [2:0] GOT1    = 3'd1;
  localparam logic [2:0] GOT10   = 3'd2;
  localparam logic [2:0] GOT101  = 3'd3;
  localparam logic [2:0] GOT1011 = 3'd4;

  logic [2:0] state;
  logic [2:0] state_next;

  always_comb begin
    case (state)
      NONE:    state_next = bit_in ? GOT1 : NONE;
      GOT1:    state_next = bit_in ? GOT1 : GOT10;
      GOT10:   state_next = bit_in ? GOT101 : NONE;
      GOT101:  state_next = bit_in ? GOT1011 : GOT10;
      GOT1011: state_next = bit_in ? GOT1 : (overlap ? GOT10 : NONE);
      default: state_next = NONE;
    endcase
  end

  assign match    = !rst && bit_valid && !bit_in && (state == GOT1011);
  assign progress = state;

  always_ff @(posedge clk) begin
    if (rst) begin
      state   <= NONE;
      match_q <= 1'b0;
    end else begin
      match_q <= match;
      if (bit_valid) state <= state_next;
    end
  end

  always_ff @(posedge clk) begin
    if (rst) match_count <= '0;
    else if (clear) match_count <= match ? 1'b1 : '0;
    else if (match && !(&match_count)) match_count <= match_count + 1'b1;
  end

endmodule
