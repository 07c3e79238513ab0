// Combinational core of the ALU, version 2: results and the flags that belong to them.
module alu_core #(
  parameter WIDTH = 8
) (
  input  logic [3:0]       opcode,
  input  logic [WIDTH-1:0] a,
  input  logic [WIDTH-1:0] b,
  output logic [WIDTH-1:0] result,
  output logic             carry,
  output logic             overflow,
  output logic             saturated,
  output logic             illegal
);

  localparam SHAMT_W = $clog2(WIDTH);

  localparam logic [3:0] OP_ADD  = 4'd0;
  localparam logic [3:0] OP_SUB  = 4'd1;
  localparam logic [3:0] OP_AND  = 4'd2;
  localparam logic [3:0] OP_OR   = 4'd3;
  localparam logic [3:0] OP_XOR  = 4'd4;
  localparam logic [3:0] OP_NOT  = 4'd5;
  localparam logic [3:0] OP_SHL  = 4'd6;
  localparam logic [3:0] OP_SHR  = 4'd7;
  localparam logic [3:0] OP_ADDS = 4'd8;
  localparam logic [3:0] OP_SUBS = 4'd9;
  localparam logic [3:0] OP_ROL  = 4'd10;
  localparam logic [3:0] OP_ROR  = 4'd11;
  localparam logic [3:0] OP_MINS = 4'd12;
  localparam logic [3:0] OP_CNT  = 4'd13;

  localparam logic [WIDTH-1:0] MAX = {1'b0, {(WIDTH - 1) {1'b1}}};
  localparam logic [WIDTH-1:0] MIN = {1'b1, {(WIDTH - 1) {1'b0}}};

  logic [SHAMT_W-1:0] shamt;
  logic [WIDTH:0]     sum, difference;
  logic               sum_overflow, difference_overflow;
  logic [WIDTH:0]     shifted_left, shifted_right;
  logic [2*WIDTH-1:0] doubled_left, doubled_right;
  logic [WIDTH-1:0]   ones;
  integer             i;

  assign shamt = b[SHAMT_W-1:0];

  // One bit more than the operands: the carry and the borrow.
  assign sum        = {1'b0, a} + {1'b0, b};
  assign difference = {1'b0, a} - {1'b0, b};

  assign sum_overflow        = (a[WIDTH-1] == b[WIDTH-1]) && (sum[WIDTH-1] != a[WIDTH-1]);
  assign difference_overflow = (a[WIDTH-1] != b[WIDTH-1]) && (difference[WIDTH-1] != a[WIDTH-1]);

  // A guard bit beside the operand catches the last bit shifted out.
  assign shifted_left  = {1'b0, a} << shamt;
  assign shifted_right = {a, 1'b0} >> shamt;

  assign doubled_left  = {a, a} << shamt;
  assign doubled_right = {a, a} >> shamt;

  always_comb begin
    ones = '0;
    for (i = 0; i < WIDTH; i = i + 1) ones = ones + a[i];
  end

  always_comb begin
    result    = '0;
    carry     = 1'b0;
    overflow  = 1'b0;
    saturated = 1'b0;
    illegal   = 1'b0;
    case (opcode)
      OP_ADD: begin
        {carry, result} = sum;
        overflow        = sum_overflow;
      end
      OP_SUB: begin
        {carry, result} = difference;
        overflow        = difference_overflow;
      end
      OP_AND: result = a & b;
      OP_OR:  result = a | b;
      OP_XOR: result = a ^ b;
      OP_NOT: result = ~a;
      OP_SHL: {carry, result} = shifted_left;
      OP_SHR: {result, carry} = shifted_right;
      OP_ADDS: begin
        overflow  = sum_overflow;
        saturated = sum_overflow;
        result    = sum_overflow ? (a[WIDTH-1] ? MIN : MAX) : sum[WIDTH-1:0];
      end
      OP_SUBS: begin
        overflow  = difference_overflow;
        saturated = difference_overflow;
        result    = difference_overflow ? (a[WIDTH-1] ? MIN : MAX) : difference[WIDTH-1:0];
      end
      OP_ROL: begin
        result = doubled_left[2*WIDTH-1:WIDTH];
        carry  = (shamt != '0) && result[0];
      end
      OP_ROR: begin
        result = doubled_right[WIDTH-1:0];
        carry  = (shamt != '0) && result[WIDTH-1];
      end
      OP_MINS: begin
        carry  = $signed(b) < $signed(a);
        result = carry ? b : a;
      end
      OP_CNT:  result = ones;
      default: illegal = 1'b1;
    endcase
  end

endmodule
