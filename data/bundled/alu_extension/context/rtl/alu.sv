// Registered ALU, version 1: one operation per cycle, one cycle of latency.
module alu #(
  parameter WIDTH = 8
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             in_valid,
  input  logic [3:0]       opcode,
  input  logic [WIDTH-1:0] a,
  input  logic [WIDTH-1:0] b,
  output logic             out_valid,
  output logic [WIDTH-1:0] result,
  output logic             zero
);

  logic [WIDTH-1:0] core_result;
  logic             core_zero;

  alu_core #(
    .WIDTH(WIDTH)
  ) core (
    .opcode(opcode),
    .a     (a),
    .b     (b),
    .result(core_result),
    .zero  (core_zero)
  );

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      out_valid <= 1'b0;
      result    <= '0;
      zero      <= 1'b0;
    end else begin
      out_valid <= in_valid;
      if (in_valid) begin
        result <= core_result;
        zero   <= core_zero;
      end
    end
  end

endmodule
