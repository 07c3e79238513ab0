// FIR filter that computes one tap per cycle.
//
// Steps of one tap: index -> operands (coefficient read, sample read) -> product -> sum.
module fir_filter #(
  parameter N_TAPS = 8,
  parameter DATA_W = 12,
  parameter COEF_W = 10,
  parameter SHIFT  = 6,
  parameter OUT_W  = 12
) (
  input  logic                      clk,
  input  logic                      rst,
  input  logic                      flush,
  input  logic                      coef_we,
  input  logic [$clog2(N_TAPS)-1:0] coef_addr,
  input  logic signed [COEF_W-1:0]  coef_data,
  input  logic                      in_valid,
  output logic                      in_ready,
  input  logic signed [DATA_W-1:0]  in_data,
  output logic                      busy,
  output logic                      out_valid,
  output logic signed [OUT_W-1:0]   out_data,
  output logic                      out_sat
);

  localparam ACC_W = DATA_W + COEF_W + $clog2(N_TAPS);

  // One bit more than the accumulator, for the sum with the rounding constant.
  localparam logic signed [ACC_W:0] HALF   = (SHIFT > 0) ? ((ACC_W + 1)'(1) << ((SHIFT > 0) ? SHIFT - 1 : 0)) : '0;
  localparam logic signed [ACC_W:0] OUT_HI = ((ACC_W + 1)'(1) << (OUT_W - 1)) - 1;
  localparam logic signed [ACC_W:0] OUT_LO = -((ACC_W + 1)'(1) << (OUT_W - 1));

  logic                      start;
  logic                      seq_active, seq_first, seq_last;
  logic [$clog2(N_TAPS)-1:0] seq_index;
  logic signed [COEF_W-1:0]  coefficient;
  logic signed [DATA_W-1:0]  sample, sample_q;
  logic                      operands_valid, operands_first, operands_last;
  logic                      product_last, sum_done;
  logic signed [ACC_W-1:0]   acc;
  logic signed [ACC_W:0]     rounded;

  assign in_ready = !busy && !flush;
  assign start    = in_valid && in_ready;

  tap_sequencer #(
    .N_TAPS(N_TAPS)
  ) sequencer (
    .clk   (clk),
    .rst   (rst),
    .start (start),
    .abort (flush),
    .active(seq_active),
    .first (seq_first),
    .last  (seq_last),
    .index (seq_index)
  );

  coef_bank #(
    .N_TAPS(N_TAPS),
    .COEF_W(COEF_W)
  ) bank (
    .clk  (clk),
    .rst  (rst),
    .we   (coef_we && !busy),
    .waddr(coef_addr),
    .wdata(coef_data),
    .raddr(seq_index),
    .rdata(coefficient)
  );

  delay_line #(
    .DEPTH(N_TAPS),
    .WIDTH(DATA_W)
  ) history (
    .clk  (clk),
    .rst  (rst),
    .clear(flush),
    .shift(start),
    .din  (in_data),
    .raddr(seq_index),
    .dout (sample)
  );

  // The bank answers one cycle after the index, so the sample and the marks wait for it.
  always_ff @(posedge clk) begin
    sample_q <= sample;
    if (rst || flush) begin
      operands_valid <= 1'b0;
      operands_first <= 1'b0;
      operands_last  <= 1'b0;
      product_last   <= 1'b0;
      sum_done       <= 1'b0;
    end else begin
      operands_valid <= seq_active;
      operands_first <= seq_first;
      operands_last  <= seq_last;
      product_last   <= operands_last;
      sum_done       <= product_last;
    end
  end

  mac_unit #(
    .A_W  (DATA_W),
    .B_W  (COEF_W),
    .ACC_W(ACC_W)
  ) mac (
    .clk  (clk),
    .rst  (rst),
    .en   (operands_valid),
    .first(operands_first),
    .a    (sample_q),
    .b    (coefficient),
    .acc  (acc)
  );

  assign rounded = (acc + HALF) >>> SHIFT;

  always_ff @(posedge clk) begin
    if (rst) begin
      busy      <= 1'b0;
      out_valid <= 1'b0;
      out_data  <= '0;
      out_sat   <= 1'b0;
    end else if (flush) begin
      busy      <= 1'b0;
      out_valid <= 1'b0;
    end else begin
      out_valid <= sum_done;
      if (start) busy <= 1'b1;
      else if (sum_done) busy <= 1'b0;
      if (sum_done) begin
        out_sat <= (rounded > OUT_HI) || (rounded < OUT_LO);
        if (rounded > OUT_HI) out_data <= OUT_HI[OUT_W-1:0];
        else if (rounded < OUT_LO) out_data <= OUT_LO[OUT_W-1:0];
        else out_data <= rounded[OUT_W-1:0];
      end
    end
  end

endmodule
