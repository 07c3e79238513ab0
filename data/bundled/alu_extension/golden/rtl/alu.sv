// Registered ALU, version 2: one operation per cycle, one cycle of latency.
module alu #(
  parameter WIDTH = 8
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             in_valid,
  input  logic [3:0]       opcode,
  input  logic [WIDTH-1:0] a,
  input  logic [WIDTH-1:0] b,
  input  logic             set_flags,
  input  logic             clear_sticky,
  output logic             out_valid,
  output logic [WIDTH-1:0] result,
  output logic             zero,
  output logic             negative,
  output logic             carry,
  output logic             overflow,
  output logic             parity,
  output logic             illegal,
  output logic             sat_sticky
);

  logic [WIDTH-1:0] core_result;
  logic             core_carry, core_overflow, core_saturated, core_illegal;

  alu_core #(
    .WIDTH(WIDTH)
  ) core (
    .opcode   (opcode),
    .a        (a),
    .b        (b),
    .result   (core_result),
    .carry    (core_carry),
    .overflow (core_overflow),
    .saturated(core_saturated),
    .illegal  (core_illegal)
  );

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      out_valid  <= 1'b0;
      result     <= '0;
      zero       <= 1'b0;
      negative   <= 1'b0;
      carry      <= 1'b0;
      overflow   <= 1'b0;
      parity     <= 1'b0;
      illegal    <= 1'b0;
      sat_sticky <= 1'b0;
    end else begin
      out_valid <= in_valid;
      if (in_valid) begin
        result  <= core_result;
        illegal <= core_illegal;
        if (set_flags) begin
          zero     <= (core_result == '0);
          negative <= core_result[WIDTH-1];
          carry    <= core_carry;
          overflow <= core_overflow;
          parity   <= ^core_result;
        end
      end
      if (in_valid && core_saturated) sat_sticky <= 1'b1;
      else if (clear_sticky) sat_sticky <= 1'b0;
    end
  end

endmodule
